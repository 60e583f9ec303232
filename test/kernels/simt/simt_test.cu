// simt_test.cu - guarantees of the host executor: geometry and exceptions (faulty kernels:
// simt_fault_test.cu)
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <limits>
#include <stdexcept>
#include <vector>

#include "kernels/simt/simt.h"
#include "test/kernels/simt/launch_support.h"
#include "test/support/catch.h"

namespace {

using test::add_on_host, test::CountsLife;

__device__ unsigned thread_number() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
__device__ unsigned block_number() { return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; }

// ---- geometry

template <bool Barrier>
__global__ void count_visits(unsigned* visits, dim3 grid, dim3 block, int* wrong) {
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    if (Barrier) __syncthreads();
    if (gridDim.x != grid.x || gridDim.y != grid.y || gridDim.z != grid.z) add_on_host(wrong, 1);
    if (blockDim.x != block.x || blockDim.y != block.y || blockDim.z != block.z) add_on_host(wrong, 1);
    if (threadIdx.x >= block.x || threadIdx.y >= block.y || threadIdx.z >= block.z) add_on_host(wrong, 1);
    if (blockIdx.x >= grid.x || blockIdx.y >= grid.y || blockIdx.z >= grid.z) add_on_host(wrong, 1);
    ++visits[block_number() * threads + thread_number()];
}

TEST_CASE("every thread of every block runs once and has the right indices", "[simt]") {
    const dim3 grid = GENERATE(dim3(1), dim3(1000), dim3(3, 5, 7), dim3(1, 1, 9));
    const dim3 block = GENERATE(dim3(1), dim3(2), dim3(33), dim3(4, 3, 5), dim3(1, 1, 64), dim3(1024));
    const unsigned threads = block.x * block.y * block.z, blocks = grid.x * grid.y * grid.z;
    CAPTURE(grid.x, grid.y, grid.z, block.x, block.y, block.z);
    std::vector<unsigned> visits(threads * blocks);
    int wrong = 0;
    simt::launch<count_visits<false>>({.grid = grid, .block = block}, visits.data(), grid, block, &wrong);
    CHECK(visits == std::vector<unsigned>(threads * blocks, 1));
    simt::launch<count_visits<true>>({.grid = grid, .block = block}, visits.data(), grid, block, &wrong);
    CHECK(visits == std::vector<unsigned>(threads * blocks, 2));
    CHECK(wrong == 0);
}

// ---- exceptions and stacks

__global__ void throws_in(unsigned thread, unsigned block, int* alive, int* went_on) {
    const CountsLife life(alive);
    __syncthreads();
    if (threadIdx.x == thread && blockIdx.x == block) throw std::out_of_range("from a kernel");
    __syncthreads();
    if (blockIdx.x == block) add_on_host(went_on, 1);
}

TEST_CASE("an exception reaches the caller of launch, and waiting threads are unwound", "[simt]") {
    const int block = GENERATE(1, 32, 200);
    const unsigned thrower = GENERATE(0u, 1u) * unsigned(block - 1), in_block = GENERATE(0u, 11u);
    int alive = 0, went_on = 0;
    CHECK_THROWS_AS((simt::launch<throws_in>({.grid = 12, .block = block}, thrower, in_block, &alive, &went_on)),
                    std::out_of_range);
    CHECK(alive == 0);
    CHECK(went_on == 0);
    CHECK_NOTHROW(simt::launch<throws_in>({.grid = 12, .block = block}, 5000u, 0u, &alive, &went_on));
    CHECK(alive == 0);
    CHECK(went_on == block);
}

// Writes downwards through more than one stack. The next stack lies below this one, separated only by the guard page.
__global__ void overflow() {
    __syncthreads();
    volatile char frame[192 * 1024];
    for (int i = sizeof frame - 1; i >= 0; i -= 1024) frame[i] = 0;
    _exit(0);
}

TEST_CASE("a fiber that overflows its stack hits the guard page", "[simt]") {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        simt::launch<overflow>({.grid = 1, .block = 8});
        _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

// ---- built-in functions

TEST_CASE("round_to<bf16> rounds to nearest even and keeps NaN", "[simt]") {
    using kernels::bf16, kernels::round_to, kernels::to_float;
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
        const float x = to_float(bf16{std::uint16_t(bits)});
        if (std::isnan(x)) {
            REQUIRE(std::isnan(to_float(round_to<bf16>(x))));
            continue;
        }
        REQUIRE(round_to<bf16>(x).bits == bits);
        if (std::isinf(x) || (bits & 0x7fff) >= 0x7f7f) continue;
        // Between x and the next bf16 away from 0: down below the midpoint, up above it, to even at the midpoint.
        const std::uint32_t middle = bits << 16 | 0x8000;
        REQUIRE(round_to<bf16>(std::bit_cast<float>(middle - 1)).bits == bits);
        REQUIRE(round_to<bf16>(std::bit_cast<float>(middle + 1)).bits == bits + 1);
        REQUIRE(round_to<bf16>(std::bit_cast<float>(middle)).bits == bits + bits % 2);
    }
    for (std::uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu})
        CHECK(std::isnan(to_float(round_to<bf16>(std::bit_cast<float>(bits)))));
    CHECK(round_to<bf16>(std::numeric_limits<float>::max()).bits == 0x7f80);  // rounds up to infinity
    CHECK(round_to<float>(0.1f) == 0.1f);
}

}  // namespace
