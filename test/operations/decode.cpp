// decode.cpp - attention of new positions to a cache of keys and values, and appending to the cache
#include "kernels/attention/decode.h"

#include <array>

#include "test/operations/operation.h"

namespace operations::decode_operation {
namespace {

struct CacheSizes {
    int batch, heads, head_size, first, count, capacity;
    explicit CacheSizes(const Shape& s)
        : batch(s[0]), heads(s[1]), head_size(s[2]), first(s[3]), count(s[4]), capacity(s[5]) {}
    std::size_t rows() const { return std::size_t(batch) * count * heads; }
    std::array<int, 3> sequence_position_head(std::size_t row) const {
        return {int(row / heads / count), int(row / heads % count), int(row % heads)};
    }
    std::size_t elements() const { return rows() * head_size; }
    std::size_t cache() const { return std::size_t(batch) * heads * capacity * head_size; }
    // Index of the first element of query, key or value (part 0, 1, 2) of a new position in qkv.
    std::size_t at(int sequence, int position, int part, int head) const {
        return (((std::size_t(sequence) * count + position) * 3 + part) * heads + head) * head_size;
    }
    std::size_t in_cache(int sequence, int head, int position) const {
        return ((std::size_t(sequence) * heads + head) * capacity + position) * head_size;
    }
};

template <class T>
struct DecodeAttention : Operation {
    CacheSizes s{shape};
    Tensor<T> qkv = input<T>("qkv", 3 * s.elements());
    Tensor<T> keys = input<T>("keys", s.cache()), values = input<T>("values", s.cache());
    Tensor<T> out = output<T>("out", s.elements());
    Tensor<float> sums = scratch<float>(
        "scratch", kernels::decode_attention_scratch(s.batch, s.count, s.capacity, s.heads, s.head_size));

    explicit DecodeAttention(const Shape& shape) : Operation(shape) {
        const double read = double(s.first + s.count) * s.batch * s.heads * s.head_size;
        flops = 4 * read * s.count;
        bytes = (2 * read + 2 * s.elements()) * sizeof(T);
        // Nothing is read past the last position.
        for (const int cache : {keys.number, values.number})
            adjust(cache, [this](std::size_t i, double x) {
                return int(i / s.head_size % s.capacity) < s.first + s.count ? x : NAN;
            });
    }
    static bool applies(const Shape& shape) { return shape[2] * sizeof(T) % 16 == 0; }
    void run(device::StreamRef stream) override {
        kernels::decode_attention<T>({out, sums, qkv, keys, values, s.batch, s.first, s.count, s.capacity, s.heads,
                                      s.head_size}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(s.rows(), [=, s = s, q = v[qkv], k = v[keys], x = v[values], y = v[out]](std::size_t row) {
            const auto [sequence, position, head] = s.sequence_position_head(row);
            const int length = s.first + position + 1;
            const N scale = N(1) / sqrt(N(s.head_size));
            std::vector<N> p(length), sums(s.head_size);
            N maximum = -INFINITY, sum = 0;
            for (int j = 0; j < length; ++j) {
                N product = 0;
                for (int c = 0; c < s.head_size; ++c)
                    product += N(q[s.at(sequence, position, 0, head) + c]) * N(k[s.in_cache(sequence, head, j) + c]);
                p[j] = product * scale;
                maximum = maximum < p[j] ? p[j] : maximum;
            }
            for (int j = 0; j < length; ++j) {
                sum += p[j] = exp(p[j] - maximum);
                for (int c = 0; c < s.head_size; ++c) sums[c] += p[j] * N(x[s.in_cache(sequence, head, j) + c]);
            }
            for (int c = 0; c < s.head_size; ++c) y[row * s.head_size + c] = sums[c] / sum;
        });
    }
};

template <class T>
struct CacheAppend : Operation {
    CacheSizes s{shape};
    Tensor<T> qkv = input<T>("qkv", 3 * s.elements());
    Tensor<T> keys = in_out<T>("keys", s.cache()), values = in_out<T>("values", s.cache());

    explicit CacheAppend(const Shape& shape) : Operation(shape) {
        bytes = 4.0 * s.elements() * sizeof(T);
        for (const int copied : {keys.number, values.number}) tensors[copied].exact = true;
    }
    static bool applies(const Shape& shape) { return shape[2] * sizeof(T) % 16 == 0; }
    void run(device::StreamRef stream) override {
        kernels::cache_append<T>({keys, values, qkv, s.batch, s.first, s.count, s.capacity, s.heads, s.head_size},
                                 stream);
    }
    template <class V> void formula(V& v) const {
        v.each(s.rows(), [s = s, from = v[qkv], k = v[keys], x = v[values]](std::size_t row) {
            const auto [sequence, position, head] = s.sequence_position_head(row);
            for (int c = 0; c < s.head_size; ++c) {
                const std::size_t to = s.in_cache(sequence, head, s.first + position) + c;
                k[to] = from[s.at(sequence, position, 1, head) + c];
                x[to] = from[s.at(sequence, position, 2, head) + c];
            }
        });
    }
};

const std::vector<std::string> kCache{"batch", "heads", "head_size", "first", "count", "capacity"};
// The first position; lengths around the number of keys that warps, blocks and CPUs process at a time (32, 128 and 64)
// and around the length of runs (128 on a GPU, 256 on a CPU), also with new positions that have different numbers of
// runs; teams of each width, half a pack, idle lanes.
const std::vector<Shape> kDecodeEdges{{1, 1, 16, 0, 1, 1}, {2, 3, 64, 31, 1, 40}, {2, 2, 64, 64, 1, 65},
                                      {1, 2, 64, 126, 3, 140}, {1, 1, 32, 255, 2, 300}, {1, 1, 64, 511, 1, 512},
                                      {2, 2, 24, 70, 1, 72}, {1, 2, 4, 70, 2, 72}, {1, 1, 96, 63, 2, 70},
                                      {1, 1, 128, 64, 1, 65}, {1, 1, 160, 40, 1, 41}, {1, 1, 256, 37, 1, 38}};
const std::vector<Shape> kDecodeSmall{{1, 12, 64, 255, 1, 1024}, {1, 12, 64, 1023, 1, 1024},
                                      {8, 12, 64, 1023, 1, 1024}},
    kDecodeLarge{{1, 12, 64, 1023, 1, 1024}, {64, 12, 64, 1023, 1, 1024}, {64, 25, 64, 1023, 1, 1024}};

const Registered decode({.name = "decode attention", .tag = "[decode]", .dimensions = kCache, .edges = kDecodeEdges,
                         .small = kDecodeSmall, .large = kDecodeLarge, .make = make<DecodeAttention>});
const Registered append({.name = "cache append", .tag = "[decode]", .dimensions = kCache,
                         .edges = {{1, 1, 16, 0, 1, 1}, {2, 3, 24, 5, 4, 9}, {1, 2, 4, 3, 2, 7}},
                         .small = {{1, 12, 64, 0, 1024, 1024}}, .large = {{64, 12, 64, 0, 1024, 1024}},
                         .make = make<CacheAppend>});

}  // namespace
}  // namespace operations::decode_operation
