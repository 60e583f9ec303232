// onebit_tile.cuh - access to a tile in the kernels of onebit.h: packs of neighbouring elements, their signs as the
// bits of a word, and the scales of a message
#pragma once
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

// Writes elements [i, i + min(kSize, left)), up to the end of the array.
__device__ __forceinline__ void write_inside(std::span<float> array, std::int64_t i, const Values& values, int left) {
    if (left >= kSize) return write(array, i, values);
    const std::int64_t end = std::int64_t(array.size()) - i;
    UNROLLED for (int k = 0; k < kSize; ++k)
        if (k < left && k < end) array[i + k] = values[k];
}

}  // namespace kernels::onebit
