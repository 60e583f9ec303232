// simt_fault_test.cu - the faults of kernels that the host executor must report instead of hanging or computing wrong
// results
//
// A report names the kernel, the block, which threads wait where, and what is wrong; afterwards the executor works
// normally. If a message depends on the order of threads, the test expects the one of ascending threads; every fault
// must be reported in all orders.
#include <vector>

#include "kernels/base/error.h"
#include "kernels/device/limits_host.h"
#include "kernels/pack.cuh"
#include "kernels/ptx.cuh"
#include "kernels/reduce.cuh"
#include "kernels/simt/simt.h"
#include "test/kernels/simt/launch_support.h"
#include "test/support/catch.h"

namespace {

using test::Contains;
using kernels::bf16, kernels::kAllLanes;

__global__ void healthy(int* out) {
    int* const mine = out + blockIdx.x * blockDim.x;
    int lanes = 1;
    for (unsigned distance = 1; distance < 32 && distance < blockDim.x; distance *= 2)
        lanes += __shfl_xor_sync(kAllLanes, lanes, int(distance));
    mine[threadIdx.x] = lanes;
    __syncthreads();
    const int other = mine[blockDim.x - 1 - threadIdx.x];
    __syncthreads();
    mine[threadIdx.x] = lanes + other;
}

template <auto Kernel, class... Args>
std::string message_of(const simt::LaunchConfig& config, Args... args) {
    const std::string message = test::error_of_launch<Kernel>(config, args...);
    CHECK(message != "accepted");
    CHECK_THAT(message, !Contains("anonymous") && !Contains("Kernel ="));
    std::vector<int> out(5 * 64);
    simt::launch<healthy>({.grid = 5, .block = 64}, out.data());
    CHECK(out == std::vector<int>(5 * 64, 32 + 32));
    return message;
}

// The message that a launch of Kernel throws with ascending threads. It must also throw in the order of this process.
template <auto Kernel, class... Args>
std::string fault_of(const simt::LaunchConfig& config, Args... args) {
    message_of<Kernel>(config, args...);
    const simt::UseOrder forward{simt::Order{}};
    return message_of<Kernel>(config, args...);
}

// ---- barriers, warps and addresses

template <class T> __device__ T one_line(T x) { return __shfl_xor_sync(kAllLanes, x, 1); }

enum class Fault {
    exits, two_barriers, missing_lanes, outside_own_mask, outside_mask, outside_warp, two_operations, two_shuffles,
    two_types, product, load, load_misaligned, load_global, copy_to, copy_from, copy_to_global, copy_from_shared, pack
};
constexpr int kSwitchLine = NEXT_LINE + 8;
__global__ void faulty(Fault fault, float* out) {
    SIMT_SHARED(bf16, rows, [96 * 8]);
    const int i = threadIdx.x;
    bf16 *const row = rows + i * 8, *const global = reinterpret_cast<bf16*>(out);
    kernels::AsyncCopies copies;
    kernels::FragmentA a{};
    float d[4] = {};
    switch (fault) {
        case Fault::exits:
            if (i < 40 && blockIdx.y == 2) return;
            __syncthreads();
            break;
        case Fault::two_barriers:
            if (i % 2) __syncthreads();
            else __syncthreads();
            break;
        case Fault::missing_lanes:
            if (i % 32 < 20 || blockIdx.x != 3) d[0] = __shfl_xor_sync(kAllLanes, float(i), 1);
            break;
        case Fault::outside_own_mask: d[0] = __shfl_xor_sync(0x0000ffffu, 1, 1); break;
        case Fault::outside_mask: if (i < 16) d[0] = __shfl_xor_sync(0x0000ffffu, float(i), 16); break;
        case Fault::outside_warp: d[0] = __shfl_xor_sync(kAllLanes, float(i), blockDim.x == 1 ? 1 : 8); break;
        case Fault::two_operations:
            if (i < 7) d[0] = __shfl_xor_sync(kAllLanes, 1, 1);
            else __syncwarp();
            break;
        case Fault::two_shuffles:
            if (i < 7) d[0] = __shfl_xor_sync(kAllLanes, 1, 1);
            else d[0] = __shfl_xor_sync(kAllLanes, 2, 1);
            break;
        case Fault::two_types: d[0] = i < 7 ? one_line(1.0f) : float(one_line(1.0)); break;
        case Fault::product: if (i != 40) kernels::mma_m16n8k16(d, a, kernels::FragmentB{}); break;
        case Fault::load: if (i != 40) kernels::ldmatrix(a.reg, row); break;
        case Fault::load_misaligned: kernels::ldmatrix(a.reg, i == 7 ? row + 1 : row); break;
        case Fault::load_global: kernels::ldmatrix_trans(a.reg, i == 2 ? global : row); break;
        case Fault::copy_to: copies.copy(row + 4, global); break;
        case Fault::copy_from: copies.copy(row, global + 1); break;
        case Fault::copy_to_global: copies.copy(global, global); break;
        case Fault::copy_from_shared: copies.copy(row, rows); break;
        case Fault::pack: d[0] = kernels::load<16>(out + i)[0]; break;
    }
    if (i == 0) out[blockIdx.x + blockIdx.y] = d[0];
}

TEST_CASE("threads that diverge, lanes outside masks and invalid addresses are reported", "[simt][ptx]") {
    struct Row {
        Fault fault;
        dim3 grid;
        int threads;
        std::vector<std::string> says;
    };
    const auto at = [](int line) { return "simt_fault_test.cu:" + std::to_string(kSwitchLine + line); };
    alignas(64) float memory[64] = {};
    for (const Row& row : std::vector<Row>{
             {Fault::exits, dim3(1, 4), 64, {", block (0, 2, 0) of 64 threads", "threads 0-39 have exited",
                                             "threads 40-63 wait in __syncthreads at ", at(2)}},
             {Fault::two_barriers, 1, 4, {"different barriers", "thread 0 waits in __syncthreads at ", at(6), at(5),
                                          "thread 1 waits in __syncthreads at ", "threads 2-3 have not started"}},
             {Fault::missing_lanes, 4, 96, {"block (3, 0, 0) of 96 threads", at(9) + " with mask 0xffffffff",
                                            "threads 0-19, 32-51, 64-83 wait in __shfl_xor_sync at ",
                                            "threads 20-31, 52-63, 84-95 have exited"}},
             {Fault::outside_own_mask, 1, 32, {"thread (16, 0, 0)", "lane 16 calls __shfl_xor_sync at ",
                                               at(11) + " with mask 0xffff, which does not include it"}},
             {Fault::outside_mask, 1, 32, {"lane 0 of a shuffle reads lane 16, which is not in the mask 0xffff",
                                           "threads 16-31 "}},
             {Fault::outside_warp, 1, 40, {"reads lane 8, which is not in the mask 0xff;"}},  // a last warp of 8 lanes
             {Fault::outside_warp, 1, 1, {"reads lane 1, which is not in the mask 0x1"}},
             {Fault::two_operations, 1, 32, {"different operations", "threads 0-6 wait in __shfl_xor_sync at ",
                                             "thread 7 waits in __syncwarp at "}},
             {Fault::two_shuffles, 1, 32, {"different operations", at(19), at(20)}},
             {Fault::two_types, 1, 32, {"different operations"}},
             {Fault::product, 1, 64, {"threads 0-31, 40 have exited", "with mask 0xffffffff", at(23),
                                      "threads 32-39, 41-63 wait in mma.sync at "}},
             {Fault::product, 1, 40, {"mma.sync needs the 32 lanes of a whole warp; this warp has 8"}},
             {Fault::product, 1, 1, {"mma.sync needs the 32 lanes of a whole warp; this warp has 1"}},
             {Fault::load, 1, 64, {"threads 32-39, 41-63 wait in ldmatrix at ", at(24)}},
             {Fault::load, 1, 40, {"ldmatrix needs the 32 lanes of a whole warp; this warp has 8"}},
             {Fault::load_misaligned, 1, 32, {"thread (7, 0, 0)", "2 bytes past a multiple of 16"}},
             {Fault::load_global, 1, 32, {"thread (2, 0, 0)", "ldmatrix reads an address outside shared memory"}},
             {Fault::copy_to, 1, 32, {"8 bytes past a multiple of 16"}},
             {Fault::copy_from, 1, 32, {"2 bytes past a multiple of 16"}},
             {Fault::copy_to_global, 1, 32, {"cp.async writes to an address outside shared memory"}},
             {Fault::copy_from_shared, 1, 32, {"cp.async reads shared memory; expected global memory"}},
             {Fault::pack, 1, 32, {"thread (1, 0, 0)", "is 4 bytes past a multiple of 16"}},
         }) {
        CAPTURE(int(row.fault), row.threads);
        const std::string message = fault_of<faulty>({.grid = row.grid, .block = row.threads}, row.fault, memory + 0);
        CHECK_THAT(message, Contains("kernel faulty, block ("));
        for (const std::string& part : row.says) CHECK_THAT(message, Contains(part));
    }
    CHECK_THROWS_WITH(simt::check_aligned(memory + 1, 8), Contains("is 4 bytes past a multiple of 8"));
    CHECK_NOTHROW(simt::check_aligned(memory + 2, 8));
}

// ---- launches

template <class T, int Value>
__global__ void launches(int* out) {
    simt::launch<healthy>({.grid = 1, .block = 2}, out);
}

TEST_CASE("a launch that is invalid on a GPU is rejected", "[simt]") {
    int* const none = nullptr;
    const auto refusal = [&](simt::LaunchConfig config) { return fault_of<healthy>(config, none); };
    CHECK_THAT(refusal({.grid = 1, .block = 0}), Contains("kernel healthy: block is (0, 1, 1)"));
    CHECK_THAT(refusal({.grid = 1, .block = dim3(32, 33)}), Contains("block is (32, 33, 1)"));
    CHECK_THAT(refusal({.grid = 1, .block = dim3(1, 1, 65)}), Contains("block is (1, 1, 65)"));
    // 2^32 threads: 0 in 32 bits
    CHECK_THAT(refusal({.grid = 1, .block = dim3(65536, 65536)}), Contains("block is (65536, 65536, 1)"));
    CHECK_THAT(refusal({.grid = 0, .block = 1}), Contains("grid is (0, 1, 1)"));
    CHECK_THAT(refusal({.grid = dim3(1, 65536), .block = 1}), Contains("grid is (1, 65536, 1)"));
    int out[2];
    const std::string nested = fault_of<launches<float, 40>>({.grid = 1, .block = 2}, out + 0);
#ifdef __clang__  // version 14 names functions without their template arguments
    CHECK_THAT(nested, Contains("kernel healthy is launched by kernel launches"));
#else
    CHECK_THAT(nested, Contains("kernel healthy is launched by kernel launches<float, 40>"));
#endif
}

__global__ void large_static(int* out) {
    SIMT_SHARED(int, first, [1024]);
    SIMT_SHARED(int, second, [56 * 1024]);
    first[0] = second[0] = 1;
    out[0] = first[0];
}

// Like cudaFuncSetAttribute. Without a UseLimits the executor has the minimum of all GPUs, so a kernel that requests
// more fails its tests.
TEST_CASE("more shared memory than the device has is rejected, static and dynamic together", "[simt]") {
    const auto refuses = [&](std::size_t most) {
        simt::LaunchConfig config{.grid = 1, .block = 64, .shared_bytes = most};
        std::vector<int> out(64);
        CHECK_NOTHROW(simt::launch<healthy>(config, out.data()));
        ++config.shared_bytes;
        CHECK_THAT(fault_of<healthy>(config, out.data()),
                   Contains("kernel healthy: shared memory is " + std::to_string(most + 1) +
                            " bytes; expected at most " + std::to_string(most)));
    };
    refuses(99 * 1024);
    const device::UseLimits more_than_any({.multiprocessors = 1, .shared_bytes = 1 << 20});
    refuses(227 * 1024);
    int out = 0;
    for (const int threads : {1, 32})
        CHECK_THAT((fault_of<large_static>({.grid = 1, .block = threads, .shared_bytes = 1024}, &out)),
                   Contains("kernel large_static, block (0, 0, 0)") &&
                       Contains("shared memory is 234496 bytes (1024 of them dynamic); expected at most 232448"));
}

}  // namespace
