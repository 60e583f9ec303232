// decode.h - attention of new positions to a cache of keys and values, and what puts theirs into it
//
//   cache:      keys[b, h, first + i], values[b, h, first + i] = those of new position i, for 0 <= i < count
//   attention:  s[i, j] = (q_i . keys_j) / sqrt(head_size) for j <= first + i,  p = softmax_j(s),
//               out_i = sum_j p[i, j] values_j
//
// Shapes    qkv: (batch, count, 3, heads, head_size) T, of the new positions; keys, values: (batch, heads, capacity,
//           head_size) T; out: (batch, count, heads, head_size) T. All sequences have the same length.
// Numerics  online softmax in float. Where few rows would leave a GPU idle, and on a CPU every 256 keys, the keys of a
//           row are shared out over several blocks, whose results are added up in a fixed order; on a GPU how many
//           there are follows from its number of multiprocessors.
// Traffic   attention reads the cache's 2 * batch * heads * (first + count) * head_size * sizeof(T) bytes once for each
//           new position, so it is for one, or a few: attention.h has the forward pass of many.
// Source    Dao et al. 2023, "Flash-Decoding", for the split over keys.
#pragma once
#include "kernels/device/types.h"

namespace kernels {

template <class T>
struct CacheAppend {
    std::span<T> keys, values;
    std::span<const T> qkv;
    int batch, first, count, capacity, heads, head_size;
};

template <class T>
struct DecodeAttention {
    std::span<T> out;
    std::span<float> scratch;  // decode_attention_scratch(...)
    std::span<const T> qkv;    // of which it reads the queries
    std::span<const T> keys, values;  // those of the new positions are there
    int batch, first, count, capacity, heads, head_size;
};

// Both enqueue on `stream`. Both throw Error unless head_size is a multiple of 16 / sizeof(T) and at most 256, first +
// count is at most capacity, and every span is long enough.
template <class T>
void cache_append(const CacheAppend<T>& op, StreamRef stream);
template <class T>
void decode_attention(const DecodeAttention<T>& op, StreamRef stream);

// Floats that suffice up to `capacity` positions, on the device in use.
std::size_t decode_attention_scratch(int batch, int count, int capacity, int heads, int head_size);

}  // namespace kernels
