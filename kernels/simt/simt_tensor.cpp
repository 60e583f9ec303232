// simt_tensor.cpp - simt_tensor.h: the collective of a whole warp, and copies that complete when they are waited for
#include "kernels/simt/simt_tensor.h"

#include "kernels/simt/races/simt_race.h"
#include "kernels/simt/simt_report.h"

namespace simt {

void wait_whole_warp(Wait instruction, const CallSite& where, void* operands, BlockScheduler::Combine combine) {
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    const unsigned number = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned first = number / kWarp * kWarp, lanes = threads - first;
    if (!running.scheduler || lanes < unsigned(kWarp))
        fault(std::string(name_of(instruction)) + " needs the 32 lanes of a whole warp; this warp has " +
              std::to_string(lanes));
    running.scheduler->wait_warp(~0u, {instruction, where}, operands, combine);
}

void AsyncCopyQueue::issue(void* shared, const void* global, bool present) {
    check_aligned(shared, kAsyncCopyBytes);
    check_aligned(global, kAsyncCopyBytes);
    if (!running.shared.holds(shared)) fault("cp.async writes to an address outside shared memory");
    if (present && running.shared.holds(global)) fault("cp.async reads shared memory; expected global memory");
    copies_.push_back({shared, present ? global : nullptr, __builtin_return_address(0)});
    note_accesses(copies_.back());
    std::memset(shared, 0xff, kAsyncCopyBytes);
}

void AsyncCopyQueue::wait() {
    for (const Copy& copy : copies_) {
        note_accesses(copy);
        if (copy.global) std::memcpy(copy.shared, copy.global, kAsyncCopyBytes);
        else std::memset(copy.shared, 0, kAsyncCopyBytes);
    }
    copies_.clear();
}

void AsyncCopyQueue::note_accesses(const Copy& copy) {
    if constexpr (finds_races) {
        if (copy.global) races::note(copy.global, kAsyncCopyBytes, races::Access::read, copy.caller);
        races::note(copy.shared, kAsyncCopyBytes, races::Access::write, copy.caller);
    }
}

}  // namespace simt
