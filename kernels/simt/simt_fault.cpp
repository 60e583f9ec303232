// simt_fault.cpp - composes the executor's error messages: kernel, block, and which threads wait where
#include <sstream>

#include "kernels/base/error.h"
#include "kernels/simt/simt_report.h"
#include "kernels/simt/simt_warp.h"

namespace simt {

std::string describe_block() {
    std::ostringstream text;
    text << "kernel " << readable(running.kernel ? running.kernel : "(none)") << ", block (" << blockIdx.x << ", "
         << blockIdx.y << ", " << blockIdx.z << ") of " << blockDim.x * blockDim.y * blockDim.z << " threads";
    return text.str();
}

[[noreturn]] void fault(const std::string& what) {
    std::ostringstream text;
    text << describe_block() << ", thread (" << threadIdx.x << ", " << threadIdx.y << ", " << threadIdx.z
         << "): " << what;
    if (running.scheduler) text << running.scheduler->describe_threads();
    throw Error(text.str(), Blame::runtime);
}

[[noreturn]] void fault_misaligned(const void* address, int bytes) {
    std::ostringstream text;
    text << "address " << address << " is misaligned: it is "
         << reinterpret_cast<std::uintptr_t>(address) % unsigned(bytes) << " bytes past a multiple of " << bytes
         << ", and a pack of " << bytes << " bytes must be aligned to its size";
    if (running.kernel) fault(text.str());
    throw Error(text.str(), Blame::runtime);
}

[[noreturn]] void fault_lane_outside_mask(int lane, int source, unsigned mask) {
    fault("lane " + std::to_string(lane) + " of a shuffle reads lane " + std::to_string(source) +
          ", which is not in the mask " + hexadecimal(mask));
}

std::string BlockScheduler::describe_threads() const {
    const auto same_state = [](const Thread& a, const Thread& b) {
        if (a.state != b.state || (a.state == State::ready && (a.fiber == nullptr) != (b.fiber == nullptr)))
            return false;
        return a.state == State::ready || a.state == State::exited ||
               (same(a.site, b.site) && (a.state == State::at_barrier || a.mask == b.mask));
    };
    std::ostringstream text;
    std::vector<bool> described(threads_.size());
    for (const Thread& first : threads_) {
        if (described[first.number]) continue;
        std::vector<unsigned> numbers;
        for (const Thread& thread : threads_)
            if (same_state(first, thread)) {
                numbers.push_back(thread.number);
                described[thread.number] = true;
            }
        text << (numbers.size() == 1 ? "; thread " : "; threads ") << spell_ranges(numbers, 8);
        const bool one = numbers.size() == 1;
        switch (first.state) {
            case State::exited: text << (one ? " has exited" : " have exited"); break;
            case State::ready:
                text << (first.fiber ? one ? " runs" : " run" : one ? " has not started" : " have not started");
                break;
            case State::at_barrier: text << (one ? " waits in " : " wait in ") << spell(first.site); break;
            case State::in_collective:
                text << (one ? " waits in " : " wait in ") << spell(first.site) << " with mask "
                     << hexadecimal(first.mask);
                break;
        }
    }
    return text.str();
}

}  // namespace simt
