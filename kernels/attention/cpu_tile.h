// cpu_tile.h - dense linear algebra on small float tiles, for attention on a CPU: copy, transpose, multiply, exp2
//
// The code uses vectors of one register (512 bits with AVX-512, otherwise 256) and blocks of kBlockRows x kBlockVectors
// sums, few enough to stay in registers and enough to hide the latency of an addition. Tiles are aligned to 64 bytes
// and their rows consist of whole vectors.
#pragma once
#include "kernels/device/types.h"

namespace kernels::tile {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16, kBlockVectors = 4;
#else
inline constexpr int kLanes = 8, kBlockVectors = 2;
#endif
// 4 x 4 vectors: 16 sums in flight where two pipelines of latency 4 need 8, and a broadcast and a load for every two of
// them.
inline constexpr int kBlockRows = 4;

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float)), may_alias));
typedef std::uint32_t BitsVector __attribute__((vector_size(kLanes * sizeof(float)), may_alias));
typedef std::int32_t IntVector __attribute__((vector_size(kLanes * sizeof(float)), may_alias));

inline Vector& vector_at(float* address) { return *reinterpret_cast<Vector*>(address); }
inline const Vector& vector_at(const float* address) { return *reinterpret_cast<const Vector*>(address); }
inline Vector broadcast(float x) { return x - Vector{}; }  // x - 0 is x, also for -0
inline IntVector lane_numbers() {
    IntVector lanes{};
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
    return lanes;
}

// out[i] is element lanes[i] of `first` followed by `second`. The shuffles of Clang 14 take constant indices only.
inline Vector shuffle(const Vector& first, const Vector& second, const IntVector& lanes) {
#ifdef __clang__
    Vector out{};
    for (int i = 0; i < kLanes; ++i) out[i] = lanes[i] < kLanes ? first[lanes[i]] : second[lanes[i] - kLanes];
    return out;
#else
    return __builtin_shuffle(first, second, lanes);
#endif
}

// 2^x to 1e-7 relative for -126 <= x < 127, at least 2^-126, exactly 1 for 0; NaN stays NaN.
// The polynomial is the minimax approximation of 2^r on [-1/2, 1/2], with a relative error of 2e-9 before rounding.
inline Vector exp2(Vector x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    x = x < -126.0f ? broadcast(-126.0f) : x;
    const Vector biased = x + kRound;
    const Vector rest = x - (biased - kRound);
    Vector series = rest * 0x1.41d334p-13f + 0x1.5f456ap-10f;
    series = series * rest + 0x1.3b2dbcp-7f;
    series = series * rest + 0x1.c6aed4p-5f;
    series = series * rest + 0x1.ebfbdap-3f;
    series = series * rest + 0x1.62e430p-1f;
    series = series * rest + 1.0f;
    const BitsVector exponent = (reinterpret_cast<const BitsVector&>(biased) << 23) + 0x3f800000u;
    return series * reinterpret_cast<const Vector&>(exponent);
}

inline float widen(float x) { return x; }
inline float widen(bf16 x) { return bf16_to_float(x); }
inline void narrow(float& to, float x) { to = x; }
inline void narrow(bf16& to, float x) { to = bf16_from_float(x); }

// Loads `rows` rows of `channels` elements, `stride` apart, as float rows of `padded` elements. The rest of the tile is
// not modified: products compute whole vectors and blocks, but no lane or row that is read later depends on it.
template <class T>
void load_rows(float* to, const T* from, std::size_t stride, int rows, int channels, int padded) {
    for (int row = 0; row < rows; ++row, to += padded, from += stride)
        for (int c = 0; c < channels; ++c) to[c] = widen(from[c]);
}

template <class T>
void store_row(T* to, const float* from, float scale, int channels) {
    for (int c = 0; c < channels; ++c) narrow(to[c], from[c] * scale);
}

// to[c][r] = scale * from[r][c] for `vectors` * kLanes rows r and `columns` (a multiple of kLanes) columns c.
// Transposes squares of kLanes x kLanes in registers: at each distance, it swaps the two off-diagonal squares.
inline void transpose(float* to, int to_stride, const float* from, int from_stride, int vectors, int columns,
                      float scale) {
    for (int first_row = 0; first_row < vectors * kLanes; first_row += kLanes)
        for (int first_column = 0; first_column < columns; first_column += kLanes) {
            Vector square[kLanes];
#pragma GCC unroll 16
            for (int r = 0; r < kLanes; ++r)
                square[r] = vector_at(from + (first_row + r) * from_stride + first_column) * scale;
#pragma GCC unroll 4
            for (int distance = 1; distance < kLanes; distance *= 2) {
                const IntVector lane = lane_numbers();
                const IntVector low = (lane & distance) != 0 ? (lane ^ distance) + kLanes : lane;
                const IntVector high = (lane & distance) != 0 ? lane + kLanes : lane ^ distance;
#pragma GCC unroll 16
                for (int r = 0; r < kLanes; ++r)
                    if ((r & distance) == 0) {
                        const Vector upper = square[r], lower = square[r | distance];
                        square[r] = shuffle(upper, lower, low);
                        square[r | distance] = shuffle(upper, lower, high);
                    }
            }
#pragma GCC unroll 16
            for (int c = 0; c < kLanes; ++c) vector_at(to + (first_column + c) * to_stride + first_row) = square[c];
        }
}

// A tile of floats; `stride` is the number of floats between rows.
struct Tile {
    float* data;
    int stride;
};

template <bool LeftTransposed, bool Accumulate, int Vectors>
inline void multiply_block(float* __restrict__ to, int to_stride, const float* left, int left_stride,
                           const float* right, int right_stride, int steps) {
    Vector sum[kBlockRows][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < kBlockRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v)
            sum[r][v] = Accumulate ? vector_at(to + r * to_stride + v * kLanes) : Vector{};
    for (int step = 0; step < steps; ++step) {
#pragma GCC unroll 8
        for (int r = 0; r < kBlockRows; ++r) {
            const float factor = LeftTransposed ? left[r] : left[r * left_stride];
#pragma GCC unroll 8
            for (int v = 0; v < Vectors; ++v) sum[r][v] += factor * vector_at(right + v * kLanes);
        }
        left += LeftTransposed ? left_stride : 1;
        right += right_stride;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kBlockRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) vector_at(to + r * to_stride + v * kLanes) = sum[r][v];
}

// kBlockRows rows of a product: to[row + r][.] (+)= sum over steps in [first_step, last_step) of left[row + r][step] *
// right[step][.], for the vectors [first_vector, last_vector) of a row. LeftTransposed: the factor is left[step][row +
// r]. Each sum adds its steps in order.
template <bool LeftTransposed, bool Accumulate>
inline void multiply_rows(Tile to, Tile left, Tile right, int row, int first_step, int last_step, int first_vector,
                          int last_vector) {
    const float* factors = LeftTransposed ? left.data + first_step * left.stride + row
                                          : left.data + row * left.stride + first_step;
    const auto block = [&]<int Vectors>(int vector) {
        multiply_block<LeftTransposed, Accumulate, Vectors>(
            to.data + row * to.stride + vector * kLanes, to.stride, factors, left.stride,
            right.data + first_step * right.stride + vector * kLanes, right.stride, last_step - first_step);
    };
    int vector = first_vector;
    for (; vector + kBlockVectors <= last_vector; vector += kBlockVectors)
        block.template operator()<kBlockVectors>(vector);
    switch (last_vector - vector) {
        case 3: return block.template operator()<3>(vector);
        case 2: return block.template operator()<2>(vector);
        case 1: return block.template operator()<1>(vector);
    }
}

}  // namespace kernels::tile
