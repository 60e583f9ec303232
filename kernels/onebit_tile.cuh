// onebit_tile.cuh - access to a tile in the kernels of onebit.h: packs of neighbouring elements, their signs or levels
// as the bits of words, and the scales of a message
#pragma once
#include "kernels/math.cuh"
#include "kernels/onebit.h"
#include "kernels/pack.cuh"
#include "kernels/reduce.cuh"

namespace kernels::onebit {

// A thread processes a pack of kSize neighbouring elements at a time: 16 bytes on a GPU, a word of bits on a CPU. On a
// GPU a thread issues the loads of kPacks packs before it uses the first (not measured).
inline constexpr int kThreads = simt::gpu_geometry ? 256 : 1, kSize = simt::gpu_geometry ? 4 : 32,
              kPacks = simt::gpu_geometry ? 4 : 1;
inline constexpr int kTile = simt::gpu_geometry ? kThreads * kSize * kPacks : 8192;
inline constexpr int kLanesPerWord = 32 / kSize;

// Offset of a thread's pack j from the block's first pack, in elements.
__device__ __forceinline__ int first_of(int j) {
    return (j * kThreads + (kThreads > 1 ? int(threadIdx.x) : 0)) * kSize;
}

using Values = Pack<float, kSize * int(sizeof(float))>;

// Elements [i, i + kSize) of an array; elements beyond its end are `none`.
__device__ __forceinline__ Values read(std::span<const float> array, std::int64_t i, float none = 0.0f) {
    Values values;
    const std::int64_t left = std::int64_t(array.size()) - i;
    if (left >= kSize) {
        if constexpr (kThreads > 1) values = load<sizeof(Values)>(&array[i]);
        else  // not aligned to a CPU's pack
            for (int k = 0; k < kSize; ++k) values[k] = array[i + k];
        return values;
    }
    UNROLLED for (int k = 0; k < kSize; ++k) values[k] = k < left ? array[i + k] : none;
    return values;
}

__device__ __forceinline__ void write(std::span<float> array, std::int64_t i, const Values& values) {
    const std::int64_t left = std::int64_t(array.size()) - i;
    if (left >= kSize) {
        if constexpr (kThreads > 1) store(&array[i], values);
        else
            for (int k = 0; k < kSize; ++k) array[i + k] = values[k];
        return;
    }
    UNROLLED for (int k = 0; k < kSize; ++k)
        if (k < left) array[i + k] = values[k];
}

// The bits of elements [i, i + kSize), the first in the lowest bit. `i` is a multiple of kSize, or of 8 if a chunk of
// the mask begins within a word.
__device__ __forceinline__ std::uint32_t bits_at(std::span<const std::uint32_t> words, std::int64_t i) {
    const int from = int(i % 32);
    std::uint32_t bits = words[i / 32] >> from;
    if (from + kSize > 32 && i / 32 + 1 < std::int64_t(words.size())) bits |= words[i / 32 + 1] << (32 - from);
    return bits;
}
__device__ __forceinline__ std::uint32_t active_at(std::span<const std::uint32_t> active, std::int64_t i) {
    return active.empty() ? ~0u : bits_at(active, i);
}

// The definition of sign for all kernels: bit k is set if values[k] >= 0.
__device__ __forceinline__ std::uint32_t signs_of(const Values& values) {
    std::uint32_t bits = 0;
    #pragma omp simd reduction(| : bits)
    for (int k = 0; k < kSize; ++k) bits |= std::uint32_t(values[k] >= 0.0f) << k;
    return bits;
}
__device__ __forceinline__ float times_sign(float scale, std::uint32_t bits, int k) {
    return bits >> k & 1 ? scale : -scale;
}

// Writes the bits of a message: kLanesPerWord neighbouring lanes combine theirs into one word. All lanes must call it;
// a lane beyond the end of the tile passes 0.
__device__ __forceinline__ void write_bits(std::uint32_t* words, int i, int size, std::uint32_t bits) {
    if constexpr (kThreads > 1) {
        bits <<= i % 32;
        UNROLLED for (int distance = 1; distance < kLanesPerWord; distance *= 2)
            bits |= __shfl_xor_sync(kAllLanes, bits, distance);
    }
    if (i < size && i % 32 == 0) words[i / 32] = bits;
}

__device__ __forceinline__ float scale_in(std::span<const std::uint32_t> messages, const OnebitLayout& layout,
                                          std::int64_t message, int scale) {
    return __uint_as_float(messages[message * layout.message_words() + scale]);
}
__device__ __forceinline__ const std::uint32_t* bits_in(std::span<const std::uint32_t> messages,
                                                        const OnebitLayout& layout, std::int64_t message) {
    return &messages[message * layout.message_words() + layout.header_words()];
}
// The bits of elements [i, i + kSize) of a chunk.
__device__ __forceinline__ std::uint32_t chunk_bits(const std::uint32_t* words, std::int64_t i) {
    return words[i / 32] >> i % 32;
}

inline constexpr int kPerWord = 8;                         // elements of a word with 4 bits
inline constexpr int kOfWord = std::min(kSize, kPerWord);  // those in one pack

// The values that bits stand for: elements [i, i + kSize) of a chunk whose bits begin at `words`.
template <int Bits>
__device__ __forceinline__ Values decoded(const std::uint32_t* words, std::int64_t i, float scale,
                                          const RoundedProduct& product) {
    Values values;
    if constexpr (Bits == 1) {
        const std::uint32_t signs = chunk_bits(words, i);
        UNROLLED for (int k = 0; k < kSize; ++k) values[k] = times_sign(scale, signs, k);
    } else {
        UNROLLED for (int w = 0; w < kSize / kOfWord; ++w) {
            const std::uint32_t word = words[i / kPerWord + w] >> 4 * (i % kPerWord);
            UNROLLED for (int k = 0; k < kOfWord; ++k)
                values[w * kOfWord + k] = product(scale, float(int(word >> 4 * k & 15) - kLargestLevel));
        }
    }
    return values;
}
// Writes the levels of elements [i, i + kSize) of a tile: on a GPU two neighbouring lanes combine theirs into one word,
// and all lanes must call it. A tile ends with a word.
__device__ __forceinline__ void write_levels(std::uint32_t* words, int i, int size, const Values& values, float scale) {
    std::uint32_t levels[kSize];
    UNROLLED for (int k = 0; k < kSize; ++k) {
        constexpr float kMost = kLargestLevel;
        const float nearest = rintf(values[k] / scale), below = nearest < kMost ? nearest : kMost;  // NaN: kMost
        levels[k] = std::uint32_t((scale == 0.0f ? 0 : int(below > -kMost ? below : -kMost)) + kLargestLevel);
    }
    UNROLLED for (int w = 0; w < kSize / kOfWord; ++w) {
        std::uint32_t bits = 0;
        UNROLLED for (int k = 0; k < kOfWord; ++k) bits |= levels[w * kOfWord + k] << 4 * k;
        if constexpr (kOfWord < kPerWord) {
            bits <<= 4 * (i % kPerWord);
            bits |= __shfl_xor_sync(kAllLanes, bits, 1);
        }
        if (i + w * kPerWord < size && i % kPerWord == 0) words[i / kPerWord + w] = bits;
    }
}

// Calls launch.template operator()<Bits>().
template <class Launch> void with_bits(const OnebitLayout& layout, Launch&& launch) {
    if (layout.bits == 4) launch.template operator()<4>();
    else launch.template operator()<1>();
}

// Writes elements [i, i + min(kSize, left)), up to the end of the array.
__device__ __forceinline__ void write_inside(std::span<float> array, std::int64_t i, const Values& values, int left) {
    if (left >= kSize) return write(array, i, values);
    const std::int64_t end = std::int64_t(array.size()) - i;
    UNROLLED for (int k = 0; k < kSize; ++k)
        if (k < left && k < end) array[i + k] = values[k];
}

}  // namespace kernels::onebit
