// simt_warp_test.cu - warp collectives of the host executor: shuffles, votes, reductions, __syncwarp
//
// Expected values follow the CUDA C++ programming guide and are implemented here independently.
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/reduce.cuh"
#include "kernels/simt/simt.h"
#include "test/support/catch.h"

namespace {

using kernels::kAllLanes;

enum class Shuffle { index, exclusive_or, up, down };

template <class T>
__global__ void shuffle(T* out, Shuffle kind, int operand, int width, T scale) {
    const T mine = T(threadIdx.x) * scale;
    T got = 0;
    switch (kind) {
        case Shuffle::index: got = __shfl_sync(kAllLanes, mine, operand, width); break;
        case Shuffle::exclusive_or: got = __shfl_xor_sync(kAllLanes, mine, operand, width); break;
        case Shuffle::up: got = __shfl_up_sync(kAllLanes, mine, operand, width); break;
        case Shuffle::down: got = __shfl_down_sync(kAllLanes, mine, operand, width); break;
    }
    out[threadIdx.x] = got;
}

int source_lane(Shuffle kind, int lane, int operand, int width) {
    const int segment = lane / width, within = lane % width;
    switch (kind) {
        case Shuffle::index: return segment * width + operand % width;
        case Shuffle::exclusive_or: return (lane ^ operand) / width <= segment ? lane ^ operand : lane;
        case Shuffle::up: return within >= operand ? lane - operand : lane;
        case Shuffle::down: return within + operand < width ? lane + operand : lane;
    }
    return -1;
}

TEMPLATE_TEST_CASE("shuffles follow the guide for every kind, width and type", "[simt]", int, unsigned, long long,
                   unsigned long long, float, double) {
    const Shuffle kind = GENERATE(Shuffle::index, Shuffle::exclusive_or, Shuffle::up, Shuffle::down);
    const TestType scale = sizeof(TestType) == 8 ? TestType(1ll << 40) : TestType(3);  // needs all bits of the type
    for (int width : {1, 2, 4, 8, 16, 32})
        for (int operand = 0; operand < 32; ++operand) {
            std::vector<TestType> out(96);
            simt::launch<shuffle<TestType>>({.grid = 1, .block = 96}, out.data(), kind, operand, width, scale);
            for (int i = 0; i < 96; ++i) {
                CAPTURE(int(kind), width, operand, i);
                REQUIRE(out[i] == TestType(i / 32 * 32 + source_lane(kind, i % 32, operand, width)) * scale);
            }
        }
}

struct Collected {
    unsigned ballot, any, all, all_true, unsigned_add, unsigned_min, unsigned_max, bits_and, bits_or, bits_xor;
    int add, min, max;
    bool operator==(const Collected&) const = default;
};

__device__ unsigned word_of(unsigned i) { return i * 2654435761u; }

__global__ void collect(Collected* out, unsigned mask) {
    const unsigned lane = threadIdx.x % 32, word = word_of(threadIdx.x);
    if (!(mask >> lane & 1)) return;
    const bool odd = word >> 31;
    Collected& c = out[threadIdx.x];
    c.ballot = __ballot_sync(mask, odd);
    c.any = __any_sync(mask, odd) != 0;
    c.all = __all_sync(mask, odd) != 0;
    c.all_true = __all_sync(mask, 1) != 0;
    c.unsigned_add = __reduce_add_sync(mask, word);
    c.unsigned_min = __reduce_min_sync(mask, word);
    c.unsigned_max = __reduce_max_sync(mask, word);
    c.bits_and = __reduce_and_sync(mask, word | 0x00ff0000u);
    c.bits_or = __reduce_or_sync(mask, word & 0xfffff00fu);
    c.bits_xor = __reduce_xor_sync(mask, word);
    c.add = __reduce_add_sync(mask, int(word));
    c.min = __reduce_min_sync(mask, int(word));
    c.max = __reduce_max_sync(mask, int(word));
}

TEST_CASE("votes and reductions cover the lanes of the mask, also in a partial warp", "[simt]") {
    const unsigned threads = GENERATE(2u, 20u, 32u, 40u, 96u),
                   mask = GENERATE(0xffffffffu, 0x0000ffffu, 0x80000001u, 0x10u);
    CAPTURE(threads, mask);
    std::vector<Collected> out(threads);
    simt::launch<collect>({.grid = 1, .block = threads}, out.data(), mask);
    for (unsigned i = 0; i < threads; ++i) {
        Collected want{};
        if (mask >> i % 32 & 1) {
            want = {0, 0, 1, 1, 0, ~0u, 0, ~0u, 0, 0, 0, std::numeric_limits<int>::max(),
                    std::numeric_limits<int>::min()};
            for (unsigned lane = 0, first = i / 32 * 32; lane < 32; ++lane) {
                if (!(mask >> lane & 1) || first + lane >= threads) continue;
                const unsigned word = word_of(first + lane);
                want.ballot |= (word >> 31) << lane;
                want.any |= word >> 31;
                want.all &= word >> 31;
                want.unsigned_add += word;
                want.unsigned_min = std::min(want.unsigned_min, word);
                want.unsigned_max = std::max(want.unsigned_max, word);
                want.bits_and &= word | 0x00ff0000u;
                want.bits_or |= word & 0xfffff00fu;
                want.bits_xor ^= word;
                want.min = std::min(want.min, int(word));
                want.max = std::max(want.max, int(word));
            }
            want.add = int(want.unsigned_add);
        }
        REQUIRE((out[i] == want));
    }
}

// The halves of a warp diverge, quarters synchronize within them, and all lanes reconverge.
__global__ void disjoint(int* out) {
    const int lane = threadIdx.x;
    int x = lane;
    if (lane < 16) x = __shfl_xor_sync(0x0000ffffu, x, 1);
    else {
        x = __shfl_xor_sync(0xffff0000u, x, 2);
        if (lane >= 24) x += 100 * __reduce_add_sync(0xff000000u, 1);
        __syncwarp(0xffff0000u);
    }
    __syncwarp();
    out[lane] = __shfl_xor_sync(kAllLanes, x, 16);
}

// The mask of the lanes that run ahead overlaps with that of the lanes that already wait for them: this is legal.
__global__ void overlapping(int* out) {
    const int lane = threadIdx.x;
    int x = lane;
    if (lane >= 8) x = __reduce_max_sync(0xffffff00u, x);
    out[lane] = __reduce_min_sync(kAllLanes, x);
}

TEST_CASE("groups of lanes with different masks do not mix", "[simt]") {
    std::vector<int> out(32);
    simt::launch<disjoint>({.grid = 1, .block = 32}, out.data());
    for (int lane = 0; lane < 32; ++lane) {
        const int other = lane ^ 16;
        CHECK(out[lane] == (other < 16 ? other ^ 1 : (other ^ 2) + (other >= 24 ? 800 : 0)));
    }
    simt::launch<overlapping>({.grid = 1, .block = 32}, out.data());
    CHECK(out == std::vector<int>(32, 0));
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
