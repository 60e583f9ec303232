// onednn_symmetric.h - a symmetric product on a CPU by blocks of rows, of which only the lower triangle is computed
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/matmul/matmul.h"

namespace kernels::symmetric {

// The rows of a symmetric product that are computed at a time, each up to its block's end: 8 blocks are 9 / 16 of the
// whole product. Time in ms without and with blocks, one thread of a Zen 3, one product in fp32 and in bf16:
//
//   m      k     x x^T, fp32    x^T x, fp32    x x^T, bf16    x^T x, bf16
//   384    1536  6.0   3.8      7.4   4.2      9.9   8.6      10.6  10.1
//   768    3072  62.3  38.3     54.3  37.2     61.7  40.0     68.5  53.3
//   1024   4096  -              -              166   119      157   152
//
// Below 384 rows blocks were up to 50 % slower in bf16; in fp32 equal, but for 256 x 1024 up to 28 % faster.
inline int rows_of_a_block(int m) {
    constexpr int kLeastRows = 384, kBlocks = 8, kMultiple = 32;
    if (m < kLeastRows) return m;
    return round_up(ceil_div(m, kBlocks), kMultiple);
}

// Copies the lower triangle of each matrix to the upper one, in tiles, so that both stay in the L1 cache.
template <class T> void mirror(const SymmetricProduct<T>& op) {
    constexpr std::int64_t kTile = 32;
    const std::int64_t m = op.m, tiles = ceil_div(m, kTile);
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int item = 0; item < op.batch; ++item)
        for (std::int64_t tile = 0; tile < tiles; ++tile) {
            T* const out = op.out.data() + item * m * m;
            const std::int64_t first = tile * kTile, end = std::min(first + kTile, m);
            for (std::int64_t left = 0; left <= first; left += kTile)
                for (std::int64_t j = left; j < std::min(left + kTile, m); ++j)
                    for (std::int64_t i = std::max(first, j + 1); i < end; ++i) out[j * m + i] = out[i * m + j];
        }
}

}  // namespace kernels::symmetric
