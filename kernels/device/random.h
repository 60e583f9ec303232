// random.h - random bits: Philox for arrays, SplitMix64 for sequences; and rounding to bf16 with them
//
//   Philox 4x32-10: ten rounds turn a 128-bit counter and a 64-bit key into four random words. It is counter-based: the
//   bits of any element or step can be computed without those before it.
//   SplitMix64: a counter passed through a mixing function, 64 bits per call, sequential.
//
// Stochastic rounding: RandomBits depend only on a seed, a step and the index of an element. Key: the seed. Counter:
// (call, step). Each 32 elements share four calls: element i takes 16 bits of word i % 4 of call
// i / 32 * 4 + i / 4 % 4, the lower ones in the first half of the 32, the upper ones in the second. So four neighbours
// need one call, and sixteen a vector of whole words. The bits are the same at every geometry, on any number of
// threads, and for a slice as for the whole array.
//
// No kernel syntax here: host files include this header too.
// Sources: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"; Steele, Lea, Flood 2014,
// "Fast splittable pseudorandom number generators".
#pragma once
#include "kernels/device/types.h"

namespace kernels {

// `Calls` calls of the generator in parallel: lane[w][j] is word w of call j, of the counter before run() and of the
// random bits after it. Lanes are 64 bits wide, like their products: with 32-bit lanes g++ widens and narrows them in
// every round (0.35 ns per element instead of 0.18, 32 calls at a time, one core).
template <int Calls>
struct Philox {
    std::uint64_t lane[4][Calls];

    constexpr void run(std::uint64_t key) {
        std::uint32_t key0 = std::uint32_t(key), key1 = std::uint32_t(key >> 32);
        for (int round = 0; round < 10; ++round) {
            for (int j = 0; j < Calls; ++j) {
                const std::uint64_t product0 = lane[0][j] * 0xd2511f53u, product2 = lane[2][j] * 0xcd9e8d57u;
                lane[0][j] = (product2 >> 32) ^ lane[1][j] ^ key0;
                lane[1][j] = std::uint32_t(product2);
                lane[2][j] = (product0 >> 32) ^ lane[3][j] ^ key1;
                lane[3][j] = std::uint32_t(product0);
            }
            key0 += 0x9e3779b9u;
            key1 += 0xbb67ae85u;
        }
    }
};

// Every seed has the full period, 2^64.
class SplitMix64 {
public:
    constexpr explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
    constexpr std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }

    // Every output bit depends on every input bit.
    static constexpr std::uint64_t mix(std::uint64_t x) {
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        return x ^ x >> 31;
    }

private:
    std::uint64_t state_;
};

// Together with the index of an element, determines its random bits.
struct RandomStream {
    std::uint64_t seed;
    std::int64_t step;
};

// The random bits of `Elements` neighbours: four, or a multiple of 32.
template <int Elements>
class RandomBits {
    static_assert(Elements == 4 || Elements % 32 == 0);

public:
    // `first`: index of the first element, a multiple of Elements.
    constexpr void draw(const RandomStream& stream, std::int64_t first) {
        const std::int64_t call = first / 32 * 4 + first / 4 % 4;
        Philox<kCalls> philox;
        for (int j = 0; j < kCalls; ++j) {
            philox.lane[0][j] = std::uint32_t(call + j);
            philox.lane[1][j] = std::uint64_t(call + j) >> 32;
            philox.lane[2][j] = std::uint32_t(stream.step);
            philox.lane[3][j] = std::uint64_t(stream.step) >> 32;
        }
        philox.run(stream.seed);
        for (int j = 0; j < kCalls; ++j)
            for (int w = 0; w < 4; ++w) word_[4 * j + w] = std::uint32_t(philox.lane[w][j]);
    }
    // The 16 bits of element `first` + k, one of those drawn. With four Elements `first` is a multiple of 4 and k < 4;
    // otherwise `first` is a multiple of 16 and k < 16.
    constexpr std::uint32_t of(std::int64_t first, int k) const {
        const std::int64_t word = Elements == 4 ? 0 : first % Elements / 32 * 16;
        return word_[word + k] >> (first & 16) & 0xffff;
    }

private:
    static constexpr int kCalls = Elements == 4 ? 1 : Elements / 8;
    std::uint32_t word_[4 * kCalls];
};

// Rounds x to one of its two bf16 neighbours: away from zero with a probability equal to its distance from the
// neighbour towards zero, in units of the gap between the two; `noise` is uniform below 2^16. Values that bf16
// represents exactly and infinities do not change; every NaN becomes the same NaN. Values beyond the largest finite
// bf16 are rounded towards zero.
constexpr bf16 round_stochastically(float x, std::uint32_t noise) {
    constexpr std::uint32_t kInfinity = 0x7f800000, kLargest = 0x7f7f0000;
    const auto bits = std::bit_cast<std::uint32_t>(x), magnitude = bits & 0x7fffffff;
    const std::uint32_t rounded = magnitude < kLargest ? bits + noise : bits;
    return {std::uint16_t(magnitude > kInfinity ? 0x7fff : rounded >> 16)};
}

}  // namespace kernels
