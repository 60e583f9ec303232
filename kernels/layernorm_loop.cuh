// layernorm_loop.cuh - LayerNorm in several loops over a row, each of which reads the row again: on a CPU, where the
// row stays in the L1 cache, and on a GPU for rows too wide for registers
//
// `Lanes` threads share a row: 1 on a CPU, where sums need no shuffles and loops over the pack vectorise, 32 on a GPU
// (a warp). Each lane re-reads only values that it wrote itself, so no barrier is needed.
#pragma once
#include <algorithm>
#include <type_traits>

#include "kernels/layernorm.h"
#include "kernels/pack.cuh"
#include "kernels/reduce.cuh"

namespace kernels {

inline constexpr float kLayerNormEpsilon = 1e-5f;

template <class Op, class T>
inline constexpr bool kFusedLayerNorm = std::is_same_v<Op, ResidualLayerNormForward<T>>;

template <class Op, class T, int Lanes, int PackBytes>
__global__ void layernorm_forward_loop_kernel(Op op, int rows_per_block) {
    using Pack = kernels::Pack<T, PackBytes>;
    const int lane = threadIdx.x % Lanes, row_in_block = threadIdx.x / Lanes, rows_at_once = blockDim.x / Lanes;
    const int packs = op.channels / Pack::size;
    const int first_row = blockIdx.x * rows_per_block;
    const int end_row = std::min(first_row + rows_per_block, op.rows);

    for (int row = first_row + row_in_block; row < end_row; row += rows_at_once) {
        const std::size_t first = std::size_t(row) * op.channels;

        Partial<Pack::size> sum;
        for (int i = lane; i < packs; i += Lanes) {
            Pack residual;
            if constexpr (kFusedLayerNorm<Op, T>) {
                const auto& left = load<PackBytes>(&op.left[first + i * Pack::size]);
                const auto& right = load<PackBytes>(&op.right[first + i * Pack::size]);
                for (int k = 0; k < Pack::size; ++k) residual[k] = round_to<T>(to_float(left[k]) + to_float(right[k]));
                store(&op.residual[first + i * Pack::size], residual);
            } else {
                residual = load<PackBytes>(&op.residual[first + i * Pack::size]);
            }
            for (int k = 0; k < Pack::size; ++k) sum[k] += to_float(residual[k]);
        }
        const float mean = warp_sum<Lanes>(sum.total()) / op.channels;

        Partial<Pack::size> squares;
        for (int i = lane; i < packs; i += Lanes) {
            const auto& residual = load<PackBytes>(&op.residual[first + i * Pack::size]);
            for (int k = 0; k < Pack::size; ++k) {
                const float centred = to_float(residual[k]) - mean;
                squares[k] += centred * centred;
            }
        }
        const float rstd = rsqrtf(warp_sum<Lanes>(squares.total()) / op.channels + kLayerNormEpsilon);

        for (int i = lane; i < packs; i += Lanes) {
            const auto& residual = load<PackBytes>(&op.residual[first + i * Pack::size]);
            const auto& weight = load<PackBytes>(&op.weight[i * Pack::size]);
            const auto& bias = load<PackBytes>(&op.bias[i * Pack::size]);
            Pack normed;
            for (int k = 0; k < Pack::size; ++k)
                normed[k] = round_to<T>((to_float(residual[k]) - mean) * rstd * to_float(weight[k]) +
                                        to_float(bias[k]));
            store(&op.normed[first + i * Pack::size], normed);
        }
        if (lane == 0) {
            op.mean[row] = mean;
            op.rstd[row] = rstd;
        }
    }
}

// A block consists of the lanes of one row, processes rows_per_block neighbouring rows, and sums dweight, dbias and
// dresidual into its own rows of `scratch`: three arrays of (blocks, channels).
template <class T, int Lanes, int PackBytes>
__global__ void layernorm_backward_loop_kernel(LayerNormBackward<T> op, int rows_per_block) {
    using Pack = kernels::Pack<T, PackBytes>;
    constexpr int kSumBytes = Lanes == 1 ? Pack::size * sizeof(float) : kGpuPackBytes;
    constexpr int kChunk = kSumBytes / sizeof(float);
    const int lane = threadIdx.x, channels = op.channels, packs = channels / Pack::size;
    float* dweight_sum = &op.scratch[std::size_t(blockIdx.x) * channels];
    float* dbias_sum = dweight_sum + std::size_t(gridDim.x) * channels;
    float* dresidual_sum = dbias_sum + std::size_t(gridDim.x) * channels;

    for (int i = lane; i < packs; i += Lanes)
        for (int at = i * Pack::size; at < (i + 1) * Pack::size; at += kChunk) {
            store(dweight_sum + at, kernels::Pack<float, kSumBytes>{});
            store(dbias_sum + at, kernels::Pack<float, kSumBytes>{});
            store(dresidual_sum + at, kernels::Pack<float, kSumBytes>{});
        }

    const int first_row = blockIdx.x * rows_per_block;
    const int end_row = std::min(first_row + rows_per_block, op.rows);
    for (int row = first_row; row < end_row; ++row) {
        const std::size_t first = std::size_t(row) * channels;
        const float mean = op.mean[row], rstd = op.rstd[row];

        Partial<Pack::size> g_sum, gn_sum;
        for (int i = lane; i < packs; i += Lanes) {
            const auto& dnormed = load<PackBytes>(&op.dnormed[first + i * Pack::size]);
            const auto& residual = load<PackBytes>(&op.residual[first + i * Pack::size]);
            const auto& weight = load<PackBytes>(&op.weight[i * Pack::size]);
            for (int k = 0; k < Pack::size; ++k) {
                const float g = to_float(weight[k]) * to_float(dnormed[k]), n = (to_float(residual[k]) - mean) * rstd;
                g_sum[k] += g;
                gn_sum[k] += g * n;
            }
        }
        const float g_mean = warp_sum<Lanes>(g_sum.total()) / channels,
                    gn_mean = warp_sum<Lanes>(gn_sum.total()) / channels;

        for (int i = lane; i < packs; i += Lanes) {
            const auto& dnormed = load<PackBytes>(&op.dnormed[first + i * Pack::size]);
            const auto& residual = load<PackBytes>(&op.residual[first + i * Pack::size]);
            const auto& weight = load<PackBytes>(&op.weight[i * Pack::size]);
            Pack dresidual{};
            if (op.accumulate_dresidual) dresidual = load<PackBytes>(&op.dresidual[first + i * Pack::size]);
            float d[Pack::size], n[Pack::size];
            for (int k = 0; k < Pack::size; ++k) {
                d[k] = to_float(dnormed[k]);
                n[k] = (to_float(residual[k]) - mean) * rstd;
                dresidual[k] = round_to<T>(to_float(dresidual[k]) +
                                           (to_float(weight[k]) * d[k] - g_mean - n[k] * gn_mean) * rstd);
            }
            store(&op.dresidual[first + i * Pack::size], dresidual);
            for (int chunk = 0; chunk < Pack::size / kChunk; ++chunk) {
                const int at = i * Pack::size + chunk * kChunk;
                auto dweight = load<kSumBytes>(dweight_sum + at);
                auto dbias = load<kSumBytes>(dbias_sum + at);
                auto sum = load<kSumBytes>(dresidual_sum + at);
                for (int k = 0; k < kChunk; ++k) {
                    dweight[k] += d[chunk * kChunk + k] * n[chunk * kChunk + k];
                    dbias[k] += d[chunk * kChunk + k];
                    sum[k] += to_float(dresidual[chunk * kChunk + k]);
                }
                store(dweight_sum + at, dweight);
                store(dbias_sum + at, dbias);
                store(dresidual_sum + at, sum);
            }
        }
    }
}

}  // namespace kernels
