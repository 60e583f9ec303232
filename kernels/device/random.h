// random.h - random bits: Philox for arrays, SplitMix64 for sequences; and rounding to bf16 with them
//
//   Philox 4x32-10: ten rounds turn a counter of 128 bits and a key of 64 into four random words. Whatever the counter
//   names, a tensor's element or an optimizer's step, has its bits without those before it.
//   SplitMix64: a counter through a mixing function, 64 bits a call, one after another.
//
// Stochastic rounding: RandomBits follow from a seed, a step and the index of an element, whoever asks for them. Key:
// the seed. Counter: (call, step). Each 32 elements share four calls: element i takes 16 bits of word i % 4 of call
// i / 32 * 4 + i / 4 % 4, the lower ones in the first half of the 32, the upper ones in the second. So four neighbours
// need one call, and sixteen a vector of whole words. The same bits at every geometry, on any number of threads, and
// for a slice as for the whole.
//
// No kernel syntax here: host files include it too.
// Sources: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"; Steele, Lea, Flood 2014,
// "Fast splittable pseudorandom number generators".
#pragma once
#include "kernels/device/types.h"

namespace kernels {

// `Calls` calls of the generator side by side: lane[w][j] is word w of call j, of the counter before and of the random
// bits after. Lanes are 64 bits wide, as their products are: with 32 g++ widens and narrows them in every round (0.35
// ns an element instead of 0.18, 32 calls at a time, one core).
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

// Every seed has the whole period, 2^64.
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

// What the random bits of an array follow from, besides the element.
struct RandomStream {
    std::uint64_t seed;
    std::int64_t step;
};

// The random bits of `Elements` neighbours: of four, or of whole runs of 32.
template <int Elements>
class RandomBits {
    static_assert(Elements == 4 || Elements % 32 == 0);

public:
    // `first`, the index of the first, is a multiple of Elements.
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
    // Those of element `first` + k, among the ones drawn. `first` is a multiple of 4 and k below 4, or with whole
    // runs of 16 and below 16.
    constexpr std::uint32_t of(std::int64_t first, int k) const {
        const std::int64_t word = Elements == 4 ? 0 : first % Elements / 32 * 16;
        return word_[word + k] >> (first & 16) & 0xffff;
    }

private:
    static constexpr int kCalls = Elements == 4 ? 1 : Elements / 8;
    std::uint32_t word_[4 * kCalls];
};

// x rounded away from zero with probability equal to its distance from the bf16 towards zero, in units of that from one
// bf16 to the next; `noise` is uniform below 2^16. What bf16 holds exactly stays; infinities stay what
// they are, every NaN becomes the same one. Beyond the largest finite bf16: towards zero.
constexpr bf16 round_stochastically(float x, std::uint32_t noise) {
    constexpr std::uint32_t kInfinity = 0x7f800000, kLargest = 0x7f7f0000;
    const auto bits = std::bit_cast<std::uint32_t>(x), magnitude = bits & 0x7fffffff;
    const std::uint32_t rounded = magnitude < kLargest ? bits + noise : bits;
    return {std::uint16_t(magnitude > kInfinity ? 0x7fff : rounded >> 16)};
}

}  // namespace kernels
