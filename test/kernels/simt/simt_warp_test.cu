// simt_warp_test.cu - warp collectives of the host executor: __shfl_xor_sync and __syncwarp
#include <vector>

#include "kernels/reduce.cuh"
#include "kernels/simt/simt.h"
#include "test/support/catch.h"

namespace {

using kernels::kAllLanes;

template <class T>
__global__ void shuffle(T* out, int operand, T scale) {
    out[threadIdx.x] = __shfl_xor_sync(kAllLanes, T(threadIdx.x) * scale, operand);
}

TEMPLATE_TEST_CASE("a shuffle reads the lane that the operand names, also in a partial warp", "[simt]", int, unsigned,
                   long long, unsigned long long, float, double) {
    const TestType scale = sizeof(TestType) == 8 ? TestType(1ll << 40) : TestType(3);  // needs all bits of the type
    const int threads = GENERATE(2, 72, 96), last_lanes = threads % 32 == 0 ? 32 : threads % 32;
    for (int operand = 0; operand < last_lanes; ++operand) {
        std::vector<TestType> out(threads);
        simt::launch<shuffle<TestType>>({.grid = 1, .block = threads}, out.data(), operand, scale);
        for (int i = 0; i < threads; ++i) {
            CAPTURE(threads, operand, i);
            REQUIRE(out[i] == TestType(i ^ operand) * scale);
        }
    }
}

// The halves of a warp diverge, quarters synchronize within them, and all lanes reconverge.
__global__ void disjoint(int* out) {
    const int lane = threadIdx.x;
    int x = lane;
    if (lane < 16) x = __shfl_xor_sync(0x0000ffffu, x, 1);
    else {
        x = __shfl_xor_sync(0xffff0000u, x, 2);
        if (lane >= 24) x += 100 * __shfl_xor_sync(0xff000000u, lane, 4);
        __syncwarp(0xffff0000u);
    }
    __syncwarp();
    out[lane] = __shfl_xor_sync(kAllLanes, x, 16);
}

// The mask of the lanes that run ahead overlaps with that of the lanes that already wait for them: this is legal.
__global__ void overlapping(int* out) {
    const int lane = threadIdx.x;
    int x = lane;
    if (lane >= 8) x = __shfl_xor_sync(0xffffff00u, x, 7);
    out[lane] = __shfl_xor_sync(kAllLanes, x, 16);
}

TEST_CASE("groups of lanes with different masks do not mix", "[simt]") {
    std::vector<int> out(32);
    simt::launch<disjoint>({.grid = 1, .block = 32}, out.data());
    for (int lane = 0; lane < 32; ++lane) {
        const int other = lane ^ 16;
        CHECK(out[lane] == (other < 16 ? other ^ 1 : (other ^ 2) + (other >= 24 ? 100 * (other ^ 4) : 0)));
    }
    simt::launch<overlapping>({.grid = 1, .block = 32}, out.data());
    for (int lane = 0; lane < 32; ++lane) CHECK(out[lane] == ((lane ^ 16) < 8 ? lane ^ 16 : lane ^ 16 ^ 7));
}

// __syncwarp orders memory: without it a lane would read a value that its neighbour has not written yet.
__global__ void rotate(int* out, int rounds) {
    SIMT_SHARED(int, line, [64]);
    const int i = threadIdx.x, neighbour = i / 32 * 32 + (i + 1) % 32;
    line[i] = i;
    for (int round = 0; round < rounds; ++round) {
        __syncwarp();
        const int next = line[neighbour];
        __syncwarp();
        line[i] = next;
    }
    out[i] = line[i];
}

TEST_CASE("__syncwarp synchronizes the lanes of a warp", "[simt]") {
    std::vector<int> out(64);
    simt::launch<rotate>({.grid = 1, .block = 64}, out.data(), 5);
    for (int i = 0; i < 64; ++i) CHECK(out[i] == i / 32 * 32 + (i + 5) % 32);
}

}  // namespace
