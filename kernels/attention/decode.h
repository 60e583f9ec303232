// decode.h - attention of new positions to a cache of keys and values (KV cache), and appending to the cache
//
//   cache:      keys[b, h, first + i], values[b, h, first + i] = key and value of new position i, for 0 <= i < count;
//               `first` positions are in the cache, which has room for `capacity`
//   attention:  s[i, j] = (q_i . keys_j) / sqrt(head_size) for j <= first + i,  p = softmax_j(s),
//               out_i = sum_j p[i, j] values_j
//
// Shapes    qkv: (batch, count, 3, heads, head_size) T, of the new positions; keys, values: (batch, heads, capacity,
//           head_size) T; out: (batch, count, heads, head_size) T. All sequences have the same length.
// Numerics  online softmax in float. On a CPU every 256 keys, and on a GPU if few rows would leave it idle, the keys of
//           a row are divided among several blocks, whose results are merged in a fixed order. On a GPU the number of
//           blocks depends on the number of multiprocessors.
// Traffic   attention reads the cache's 2 * batch * heads * (first + count) * head_size * sizeof(T) bytes once for each
//           new position, so use it for one or a few positions, and attention.h's forward pass for many.
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
    std::span<const T> qkv;    // only the queries are read
    std::span<const T> keys, values;  // the cache, to which the new positions are already appended
    int batch, first, count, capacity, heads, head_size;
};

// Both enqueue on `stream`. Both throw Error unless head_size is a multiple of 16 / sizeof(T) and at most 256, first +
// count is at most capacity, and every span is long enough.
template <class T>
void cache_append(const CacheAppend<T>& op, StreamRef stream);
template <class T>
void decode_attention(const DecodeAttention<T>& op, StreamRef stream);

// Floats of scratch for any length up to `capacity` positions, on the current device.
std::size_t decode_attention_scratch(int batch, int count, int capacity, int heads, int head_size);

}  // namespace kernels
