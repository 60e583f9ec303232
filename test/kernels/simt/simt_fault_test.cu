// simt_fault_test.cu - one faulty kernel for each fault that the host executor must report instead of hanging or
// computing wrong results
//
// A report names the kernel, the block, which threads wait where, and what is wrong; afterwards the executor works
// normally. If a message depends on the order of threads, the test expects the one of ascending threads; every kernel
// must be reported in all orders.
#include <vector>

#include "kernels/base/error.h"
#include "kernels/device/limits_host.h"
#include "kernels/pack.cuh"
#include "kernels/reduce.cuh"
#include "kernels/simt/simt.h"
#include "test/kernels/simt/launch_support.h"
#include "test/support/catch.h"

namespace {

using test::Contains;
using kernels::kAllLanes;

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
    CHECK(message != "");
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

std::string at(int line) { return std::string("simt_fault_test.cu:") + std::to_string(line); }

constexpr int kEarlyExitLine = NEXT_LINE + 3;
template <class T, int Threads>
__global__ void early_exit() {
    if (threadIdx.x < Threads && blockIdx.y == 2) return;
    __syncthreads();
}

TEST_CASE("threads that exit before a barrier are reported", "[simt]") {
    const auto message = fault_of<early_exit<float, 40>>({.grid = dim3(1, 4), .block = 64});
#ifdef __clang__  // version 14 names functions without their template arguments
    CHECK_THAT(message, Contains("kernel early_exit") && Contains(", block (0, 2, 0) of 64 threads"));
#else
    CHECK_THAT(message, Contains("kernel early_exit<float, 40>, block (0, 2, 0) of 64 threads"));
#endif
    CHECK_THAT(message, Contains("threads 40-63 wait in __syncthreads at ") && Contains(at(kEarlyExitLine)));
    CHECK_THAT(message, Contains("threads 0-39 have exited"));
}

constexpr int kTwoBarriersLine = NEXT_LINE + 1;
__global__ void two_barriers() {
    if (threadIdx.x % 2) __syncthreads();
    else __syncthreads();
}

TEST_CASE("threads that wait in different barriers are reported", "[simt]") {
    const auto message = fault_of<two_barriers>({.grid = 1, .block = 4});
    CHECK_THAT(message,
               Contains("kernel two_barriers, block (0, 0, 0) of 4 threads") && Contains("different barriers"));
    CHECK_THAT(message, Contains("thread 0 waits in __syncthreads at ") && Contains(at(kTwoBarriersLine + 1)));
    CHECK_THAT(message, Contains("thread 1 waits in __syncthreads at ") && Contains(at(kTwoBarriersLine)));
    CHECK_THAT(message, Contains("threads 2-3 have not started"));
}

constexpr int kMissingLanesLine = NEXT_LINE + 2;
__global__ void missing_lanes(float* out) {
    if (threadIdx.x % 32 < 20 || blockIdx.x != 3)
        out[blockIdx.x * 96 + threadIdx.x] = __shfl_xor_sync(kAllLanes, float(threadIdx.x), 1);
}

TEST_CASE("lanes that never reach a collective are reported", "[simt]") {
    std::vector<float> out(4 * 96);
    const auto message = fault_of<missing_lanes>({.grid = 4, .block = 96}, out.data());
    CHECK_THAT(message, Contains("kernel missing_lanes, block (3, 0, 0) of 96 threads"));
    CHECK_THAT(message, Contains("threads 0-19, 32-51, 64-83 wait in __shfl_xor_sync at "));
    CHECK_THAT(message, Contains(at(kMissingLanesLine) + " with mask 0xffffffff"));
    CHECK_THAT(message, Contains("threads 20-31, 52-63, 84-95 have exited"));
}

constexpr int kOutsideLine = NEXT_LINE + 1;
__global__ void outside_own_mask(int* out) {
    out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1, 1);
}

TEST_CASE("a caller outside its own mask is reported", "[simt]") {
    std::vector<int> out(32);
    const auto message = fault_of<outside_own_mask>({.grid = 1, .block = 32}, out.data());
    CHECK_THAT(message, Contains("kernel outside_own_mask") && Contains("thread (16, 0, 0)"));
    CHECK_THAT(message, Contains("lane 16 calls __shfl_xor_sync at ") &&
                            Contains(at(kOutsideLine) + " with mask 0xffff, which does not include it"));
}

__global__ void reads_outside_mask(float* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, float(threadIdx.x), 16);
}
__global__ void reads_lane(float* out, int operand) {
    out[threadIdx.x] = __shfl_xor_sync(kAllLanes, float(threadIdx.x), operand);
}

TEST_CASE("a shuffle that reads a lane outside the mask is reported", "[simt]") {
    std::vector<float> out(40);
    CHECK_THAT((fault_of<reads_outside_mask>({.grid = 1, .block = 32}, out.data())),
               Contains("kernel reads_outside_mask") &&
                   Contains("lane 0 of a shuffle reads lane 16, which is not in the mask 0xffff") &&
                   Contains("__shfl_xor_sync at ") && Contains("threads 16-31 "));
    // The last warp has 8 lanes.
    CHECK_THAT((fault_of<reads_lane>({.grid = 1, .block = 40}, out.data(), 8)),
               Contains("reads lane 8, which is not in the mask 0xff;"));
    CHECK_THAT((fault_of<reads_lane>({.grid = 1, .block = 1}, out.data(), 1)),
               Contains("reads lane 1, which is not in the mask 0x1"));
}

constexpr int kDifferentLine = NEXT_LINE + 1;
__global__ void different_operations(int* out) {
    if (threadIdx.x < 7) out[threadIdx.x] = __shfl_xor_sync(kAllLanes, 1, 1);
    else __syncwarp();
}
constexpr int kTwoShufflesLine = NEXT_LINE + 1;
__global__ void two_shuffles(int* out) {
    if (threadIdx.x < 7) out[threadIdx.x] = __shfl_xor_sync(kAllLanes, 1, 1);
    else out[threadIdx.x] = __shfl_xor_sync(kAllLanes, 2, 1);
}
template <class T> __device__ T one_line(T x) { return __shfl_xor_sync(kAllLanes, x, 1); }
__global__ void different_types(float* out) {
    out[threadIdx.x] = threadIdx.x < 7 ? one_line(1.0f) : float(one_line(1.0));
}

TEST_CASE("lanes that wait in different operations are reported", "[simt]") {
    std::vector<int> out(32);
    const auto message = fault_of<different_operations>({.grid = 1, .block = 32}, out.data());
    CHECK_THAT(message, Contains("different operations") && Contains("threads 0-6 wait in __shfl_xor_sync at ") &&
                            Contains(at(kDifferentLine)));
    CHECK_THAT(message, Contains("thread 7 waits in __syncwarp at ") && Contains(at(kDifferentLine + 1)));
    const auto shuffles = fault_of<two_shuffles>({.grid = 1, .block = 32}, out.data());
    CHECK_THAT(shuffles, Contains(at(kTwoShufflesLine)) && Contains(at(kTwoShufflesLine + 1)));
    std::vector<float> floats(32);
    CHECK_THAT((fault_of<different_types>({.grid = 1, .block = 32}, floats.data())), Contains("different operations"));
}

TEST_CASE("a launch configuration that is invalid on a GPU is rejected", "[simt]") {
    int* const none = nullptr;
    const auto refusal = [&](simt::LaunchConfig config) { return fault_of<healthy>(config, none); };
    CHECK_THAT(refusal({.grid = 1, .block = 0}), Contains("kernel healthy: block is (0, 1, 1)"));
    CHECK_THAT(refusal({.grid = 1, .block = 1025}), Contains("block is (1025, 1, 1)"));
    CHECK_THAT(refusal({.grid = 1, .block = dim3(32, 33)}), Contains("block is (32, 33, 1)"));
    CHECK_THAT(refusal({.grid = 1, .block = dim3(1, 1, 65)}), Contains("block is (1, 1, 65)"));
    // 2^32 threads: 0 in 32 bits
    CHECK_THAT(refusal({.grid = 1, .block = dim3(65536, 65536)}), Contains("block is (65536, 65536, 1)"));
    CHECK_THAT(refusal({.grid = 0, .block = 1}), Contains("grid is (0, 1, 1)"));
    CHECK_THAT(refusal({.grid = dim3(1, 65536), .block = 1}), Contains("grid is (1, 65536, 1)"));
}

// Like cudaFuncSetAttribute. Without a UseLimits the executor has the minimum of all GPUs, so a kernel that requests
// more fails its tests.
TEST_CASE("more shared memory than the device has is rejected", "[simt]") {
    const int threads = GENERATE(1, 64);
    const auto refuses = [&](std::size_t most) {
        simt::LaunchConfig config{.grid = 1, .block = threads, .shared_bytes = most};
        std::vector<int> out(threads);
        CHECK_NOTHROW(simt::launch<healthy>(config, out.data()));
        ++config.shared_bytes;
        CHECK_THAT(fault_of<healthy>(config, out.data()),
                   Contains("kernel healthy: shared memory is " + std::to_string(most + 1) +
                            " bytes; expected at most " + std::to_string(most)));
    };
    refuses(99 * 1024);
    const device::UseLimits sm_80({.multiprocessors = 108, .shared_bytes = 163 * 1024});
    refuses(163 * 1024);
    const device::UseLimits more_than_any({.multiprocessors = 1, .shared_bytes = 1 << 20});
    refuses(227 * 1024);
}

__global__ void large_static(int* out) {
    SIMT_SHARED(int, first, [1024]);
    SIMT_SHARED(int, second, [56 * 1024]);
    first[0] = second[0] = 1;
    out[0] = first[0];
}

TEST_CASE("too much shared memory is reported, static and dynamic together", "[simt]") {
    const device::UseLimits sm_90({.multiprocessors = 132, .shared_bytes = 227 * 1024});
    const int threads = GENERATE(1, 32);
    int out = 0;
    CHECK_THAT((fault_of<large_static>({.grid = 1, .block = threads}, &out)),
               Contains("kernel large_static, block (0, 0, 0)") &&
                   Contains("shared memory is 233472 bytes (0 of them dynamic); expected at most 232448"));
    CHECK_THAT((fault_of<large_static>({.grid = 1, .block = threads, .shared_bytes = 1024}, &out)),
               Contains("shared memory is 234496 bytes (1024 of them dynamic)"));
}

__global__ void misaligned_pack(float* out) { out[0] = kernels::load<16>(out + threadIdx.x)[0]; }

TEST_CASE("a misaligned pack is reported", "[simt]") {
    alignas(64) float values[64] = {};
    const auto message = fault_of<misaligned_pack>({.grid = 1, .block = 32}, values);
    CHECK_THAT(message, Contains("kernel misaligned_pack") && Contains("thread (1, 0, 0)") &&
                            Contains("is 4 bytes past a multiple of 16"));
    CHECK_THAT((fault_of<misaligned_pack>({.grid = 1,
                                           .block = 1}, values + 3)), Contains("is 12 bytes past a multiple of 16"));
    CHECK_THROWS_WITH(simt::check_aligned(values + 1, 8), Contains("is 4 bytes past a multiple of 8"));
    CHECK_NOTHROW(simt::check_aligned(values + 2, 8));
}

__global__ void launches(int* out) { simt::launch<healthy>({.grid = 1, .block = 2}, out); }

TEST_CASE("a launch from a kernel is reported", "[simt]") {
    const int threads = GENERATE(1, 2);
    int out[2];
    CHECK_THAT((fault_of<launches>({.grid = 1, .block = threads}, out)),
               Contains("kernel healthy is launched by kernel launches"));
}

}  // namespace
