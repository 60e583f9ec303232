// onednn_widen.h - products of bf16 matrices in float arithmetic, for processors whose bf16 instructions are missing or
// slow, and of 8-bit floats
//
//   out (+)= factor * left * right     left: (rows, inner), right: (inner, columns), either of them stored transposed
//
// Tiles of both factors are widened into a scratch of kScratchFloats floats (6.5 MB, fits in the last-level cache) and
// multiplied by oneDNN's float GEMM; sums over the tiles stay in float, and a bf16 result is rounded once. Overhead:
// each element of a factor is widened once per tile of the other, 1 / 512 + 1 / 1024 of the multiplications.
#pragma once
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <array>

#include "kernels/device/types.h"

namespace kernels::widened {

inline constexpr std::int64_t kTileRows = 512, kTileColumns = 1024, kTileInner = 768;
inline constexpr std::size_t kScratchFloats = kTileRows * kTileInner + kTileInner * kTileColumns +
                                              kTileRows * kTileColumns;

// Row-major with `stride` elements per row. `transposed`: element (i, j) of the factor is element (j, i) in memory.
template <class T> struct Factor {
    const T* data;
    std::int64_t stride;
    bool transposed;
};

inline float value_of(bf16 x) { return bf16_to_float(x); }
template <class T> float value_of(T x) {
    static constexpr auto kValues = [] {
        std::array<float, 256> values{};
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = fp8_to_float(T{std::uint8_t(i)});
        return values;
    }();
    return kValues[x.bits];
}

// The tile (first_row .. + rows, first_column .. + columns) of a factor, in its memory order.
template <class T>
void widen(float* to, const Factor<T>& from, std::int64_t first_row, std::int64_t rows, std::int64_t first_column,
                  std::int64_t columns) {
    if (from.transposed) std::swap(first_row, first_column), std::swap(rows, columns);
#pragma omp parallel for
    for (std::int64_t i = 0; i < rows; ++i) {
        const T* row = from.data + (first_row + i) * from.stride + first_column;
        for (std::int64_t j = 0; j < columns; ++j) to[i * columns + j] = value_of(row[j]);
    }
}

// `tile` (rows, columns) plus bias, rounded to bf16. nullptr: no bias.
inline void narrow(bf16* to, std::int64_t stride, const float* tile, std::int64_t rows, std::int64_t columns,
                   const bf16* bias) {
#pragma omp parallel for
    for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < columns; ++j)
            to[i * stride + j] = bf16_from_float(bias ? tile[i * columns + j] + bf16_to_float(bias[j])
                                                      : tile[i * columns + j]);
}

template <class Left, class Right> struct Product {
    std::int64_t rows, columns, inner;
    Factor<Left> left;
    Factor<Right> right;
    bf16* out = nullptr;        // set one of the two, row-major and dense
    float* out_float = nullptr;
    const bf16* bias = nullptr;  // (columns), with `out` only
    bool accumulate = false;     // with `out_float` only
    float factor = 1;
};

// Returns the library's status. Results are bit-identical in every run.
template <class Left, class Right>
dnnl_status_t multiply(const Product<Left, Right>& op, float* scratch) {
    float* const left = scratch;
    float* const right = left + kTileRows * kTileInner;
    float* const tile = right + kTileInner * kTileColumns;
    const bool inner_is_one_tile = op.inner <= kTileInner;
    for (std::int64_t row = 0; row < op.rows; row += kTileRows) {
        const std::int64_t rows = std::min(kTileRows, op.rows - row);
        for (std::int64_t column = 0; column < op.columns; column += kTileColumns) {
            const std::int64_t columns = std::min(kTileColumns, op.columns - column);
            float* const out = op.out ? tile : op.out_float + row * op.columns + column;
            for (std::int64_t k = 0; k < op.inner; k += kTileInner) {
                const std::int64_t inner = std::min(kTileInner, op.inner - k);
                if (column == 0 || !inner_is_one_tile) widen(left, op.left, row, rows, k, inner);
                if (row == 0 || !inner_is_one_tile || op.columns > kTileColumns)
                    widen(right, op.right, k, inner, column, columns);
                const dnnl_status_t status = dnnl_sgemm(
                    op.left.transposed ? 'T' : 'N', op.right.transposed ? 'T' : 'N', rows, columns, inner, op.factor,
                    left, op.left.transposed ? rows : inner, right, op.right.transposed ? inner : columns,
                    k > 0 || op.accumulate ? 1.0f : 0.0f, out, op.out ? columns : op.columns);
                if (status != dnnl_success) return status;
            }
            if (op.out)
                narrow(op.out + row * op.columns + column, op.columns, tile, rows, columns,
                       op.bias ? op.bias + column : nullptr);
        }
    }
    return dnnl_success;
}

}  // namespace kernels::widened
