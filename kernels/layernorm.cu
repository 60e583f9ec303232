// layernorm.cu - kernels that take whole rows: a warp each on a GPU, a thread on a CPU
//
// Forward: a warp per row (one thread on a CPU) reads it once and keeps it for the two passes over it that follow.
// Backward: the same per row for dresidual; the sums over rows for the parameters are kept per warp, then per block,
// then added up over blocks.
#include "kernels/layernorm.h"

#include <type_traits>

#include "kernels/device/error.h"
#include "kernels/pack.cuh"
#include "kernels/reduce.cuh"
#include "kernels/row_sum.cuh"

namespace kernels {
namespace {

constexpr float kEpsilon = 1e-5f;

template <class Op, class T>
inline constexpr bool kFused = std::is_same_v<Op, ResidualLayerNormForward<T>>;

// `Lanes` threads share a row: 32 on a GPU (a warp), 1 on a CPU, where the sums need no neighbour and the pack
// vectorises.
// Each lane re-reads only what it wrote itself, to the row cache or to `residual`, so no barrier is needed.
template <class Op, class T, int Lanes, int PackBytes, bool RowCache>
__global__ void layernorm_forward_kernel(Op op, int rows_per_block) {
    using Pack = kernels::Pack<T, PackBytes>;
    SIMT_DYN_SHARED(Pack, row_cache);
    const int lane = threadIdx.x % Lanes, row_in_block = threadIdx.x / Lanes, rows_at_once = blockDim.x / Lanes;
    const int packs = op.channels / Pack::size;
    [[maybe_unused]] Pack* cache = row_cache + row_in_block * packs;
    const int first_row = blockIdx.x * rows_per_block;
    const int end_row = first_row + rows_per_block < op.rows ? first_row + rows_per_block : op.rows;

    for (int row = first_row + row_in_block; row < end_row; row += rows_at_once) {
        const std::size_t first = std::size_t(row) * op.channels;
        const auto again = [&](int i) -> decltype(auto) {
            if constexpr (RowCache) return Pack(cache[i]);
            else return load<PackBytes>(&op.residual[first + i * Pack::size]);
        };

        Partial<Pack::size> sum;
        for (int i = lane; i < packs; i += Lanes) {
            Pack residual;
            if constexpr (kFused<Op, T>) {
                const auto& left = load<PackBytes>(&op.left[first + i * Pack::size]);
                const auto& right = load<PackBytes>(&op.right[first + i * Pack::size]);
                for (int k = 0; k < Pack::size; ++k) residual[k] = round_to<T>(to_float(left[k]) + to_float(right[k]));
                store(&op.residual[first + i * Pack::size], residual);
            } else {
                residual = load<PackBytes>(&op.residual[first + i * Pack::size]);
            }
            if constexpr (RowCache) cache[i] = residual;
            for (int k = 0; k < Pack::size; ++k) sum[k] += to_float(residual[k]);
        }
        const float mean = lanes_sum<Lanes>(sum.total()) / op.channels;

        Partial<Pack::size> squares;
        for (int i = lane; i < packs; i += Lanes) {
            const auto& residual = again(i);
            for (int k = 0; k < Pack::size; ++k) {
                const float centred = to_float(residual[k]) - mean;
                squares[k] += centred * centred;
            }
        }
        const float rstd = rsqrtf(lanes_sum<Lanes>(squares.total()) / op.channels + kEpsilon);

        for (int i = lane; i < packs; i += Lanes) {
            const auto& residual = again(i);
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

// Four warps a block on a GPU, their rows cached where that needs no more shared memory than any kernel may have
// unasked (3072 floats a row), else read again, from L1 or L2: not measured yet. On a CPU the row is in L1 anyway, and
// 1, 16 or 64 rows a block take the same time.
constexpr int kForwardWarps = 4, kForwardCpuRows = 16;
constexpr std::size_t kRowCacheBytes = 48 * 1024;

template <class T, class Op>
void launch_forward(const Op& op, StreamRef stream) {
    if constexpr (simt::gpu_geometry) {
        const unsigned blocks = (op.rows + kForwardWarps - 1) / kForwardWarps, threads = 32 * kForwardWarps;
        const std::size_t cache_bytes = std::size_t(kForwardWarps) * op.channels * sizeof(T);
        if (cache_bytes <= kRowCacheBytes)
            simt::launch<layernorm_forward_kernel<Op, T, 32, kGpuPackBytes, true>>(
                {.grid = blocks, .block = threads, .shared_bytes = cache_bytes, .stream = stream}, op, kForwardWarps);
        else
            simt::launch<layernorm_forward_kernel<Op, T, 32, kGpuPackBytes, false>>(
                {.grid = blocks, .block = threads, .stream = stream}, op, kForwardWarps);
    } else {
        const simt::LaunchConfig config{.grid = unsigned(op.rows + kForwardCpuRows - 1) / kForwardCpuRows, .block = 1,
                                        .stream = stream};
        if (op.channels % kCpuPackElements == 0)
            simt::launch<layernorm_forward_kernel<Op, T, 1, kCpuRowPackBytes<T>, false>>(config, op, kForwardCpuRows);
        else simt::launch<layernorm_forward_kernel<Op, T, 1, 16, false>>(config, op, kForwardCpuRows);
    }
}

// A block takes rows_per_block neighbouring rows. Each warp adds up dweight and dbias over its rows in shared memory of
// its own, where every lane comes back to what it wrote itself: no barrier until the block adds its warps up. The sums
// lie in chunks of four floats, lane beside lane, so that a warp's accesses meet no bank twice. One warp alone (a CPU,
// or rows too wide for shared memory) adds up in the block's rows of `scratch`.
//
// scratch: dweight (blocks, channels), then dbias (blocks, channels).
template <class T, int Lanes, int PackBytes, bool SumsInShared>
__global__ void layernorm_backward_kernel(LayerNormBackward<T> op, int rows_per_block) {
    using Pack = kernels::Pack<T, PackBytes>;
    constexpr int kChunk = SumsInShared ? 4 : Pack::size, kChunkBytes = kChunk * sizeof(float);
    SIMT_DYN_SHARED(float, warp_sums);
    const int lane = threadIdx.x % Lanes, warp = threadIdx.x / Lanes, warps = blockDim.x / Lanes;
    const int channels = op.channels, packs = channels / Pack::size;
    float* block_dweight = &op.scratch[std::size_t(blockIdx.x) * channels];
    float* block_dbias = block_dweight + std::size_t(gridDim.x) * channels;
    float* dweight_sum = SumsInShared ? warp_sums + 2 * warp * channels : block_dweight;
    float* dbias_sum = SumsInShared ? dweight_sum + channels : block_dbias;
    const auto place = [=](int pack, int chunk) { return (chunk * packs + pack) * kChunk; };

    for (int i = lane; i < packs; i += Lanes)
        for (int chunk = 0; chunk < Pack::size / kChunk; ++chunk) {
            store(dweight_sum + place(i, chunk), kernels::Pack<float, kChunkBytes>{});
            store(dbias_sum + place(i, chunk), kernels::Pack<float, kChunkBytes>{});
        }

    const int first_row = blockIdx.x * rows_per_block;
    const int end_row = first_row + rows_per_block < op.rows ? first_row + rows_per_block : op.rows;
    for (int row = first_row + warp; row < end_row; row += warps) {
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
        const float g_mean = lanes_sum<Lanes>(g_sum.total()) / channels,
                    gn_mean = lanes_sum<Lanes>(gn_sum.total()) / channels;

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
                auto dweight = load<kChunkBytes>(dweight_sum + place(i, chunk));
                auto dbias = load<kChunkBytes>(dbias_sum + place(i, chunk));
                for (int k = 0; k < kChunk; ++k) {
                    dweight[k] += d[chunk * kChunk + k] * n[chunk * kChunk + k];
                    dbias[k] += d[chunk * kChunk + k];
                }
                store(dweight_sum + place(i, chunk), dweight);
                store(dbias_sum + place(i, chunk), dbias);
            }
        }
    }

    if constexpr (SumsInShared) {
        __syncthreads();
        for (int channel = threadIdx.x; channel < channels; channel += blockDim.x) {
            const int at = place(channel / Pack::size, channel % Pack::size / kChunk) + channel % kChunk;
            float dweight = 0.0f, dbias = 0.0f;
            for (int w = 0; w < warps; ++w) {
                dweight += warp_sums[2 * w * channels + at];
                dbias += warp_sums[(2 * w + 1) * channels + at];
            }
            block_dweight[channel] = dweight;
            block_dbias[channel] = dbias;
        }
    }
}

// Two blocks a multiprocessor of 132, near enough; the sums of 100 KiB a block fit beside each other on sm_90 and alone
// on sm_80. Not measured yet. A CPU block of 32 rows: 0.26 ms on one core for 1024 x 768 fp32, as with 128; with 2,
// 0.29 ms, for clearing and adding up more sums.
constexpr int kMostBlocks = 256, kMostWarps = 8, kBackwardCpuRows = 32;
constexpr std::size_t kWarpSumsBytes = 100 * 1024;

// Returns the number of blocks, which is how many sums each channel has in `scratch`.
template <class T>
int launch_backward(const LayerNormBackward<T>& op, StreamRef stream) {
    const int fitting_warps = int(kWarpSumsBytes / (2 * sizeof(float) * op.channels));
    const int warps = !simt::gpu_geometry || fitting_warps < 1 ? 1
                      : fitting_warps < kMostWarps             ? fitting_warps
                                                               : kMostWarps;
    const int least_rows = simt::gpu_geometry ? warps : kBackwardCpuRows;
    const int fewest_rows = (op.rows + kMostBlocks - 1) / kMostBlocks;
    const int rows_per_block = fewest_rows > least_rows ? fewest_rows : least_rows;
    const int blocks = (op.rows + rows_per_block - 1) / rows_per_block;
    simt::LaunchConfig config{.grid = unsigned(blocks), .block = 1, .stream = stream};
    if constexpr (simt::gpu_geometry) {
        config.block = 32 * warps;
        if (fitting_warps < 1)
            simt::launch<layernorm_backward_kernel<T, 32, kGpuPackBytes, false>>(config, op, rows_per_block);
        else {
            config.shared_bytes = std::size_t(2) * warps * op.channels * sizeof(float);
            simt::launch<layernorm_backward_kernel<T, 32, kGpuPackBytes, true>>(config, op, rows_per_block);
        }
    } else if (op.channels % kCpuPackElements == 0) {
        simt::launch<layernorm_backward_kernel<T, 1, kCpuRowPackBytes<T>, false>>(config, op, rows_per_block);
    } else {
        simt::launch<layernorm_backward_kernel<T, 1, 16, false>>(config, op, rows_per_block);
    }
    return blocks;
}

// What was expected of a span.
constexpr const char *kWholeTensor = "at least rows * channels", *kOneARow = "at least rows",
                     *kOneAChannel = "at least channels";

void check_shape(int rows, int channels, std::size_t pack_elements) {
    require(rows > 0, "rows of a LayerNorm", rows, "at least 1");
    require(channels > 0 && channels % pack_elements == 0, "channels of a LayerNorm", channels,
            "a multiple of 16 bytes' worth of elements");
}
template <class Span>
void check_size(const char* what, const Span& span, std::size_t need, const char* expected) {
    require(span.size() >= need, what, span.size(), expected);
}

// Of the tensors that both forward forms have.
template <class T, class Op>
void check_forward(const Op& op) {
    check_shape(op.rows, op.channels, 16 / sizeof(T));
    const std::size_t rows = op.rows, channels = op.channels;
    check_size("the size of LayerNorm's residual", op.residual, rows * channels, kWholeTensor);
    check_size("the size of LayerNorm's normed", op.normed, rows * channels, kWholeTensor);
    check_size("the size of LayerNorm's mean", op.mean, rows, kOneARow);
    check_size("the size of LayerNorm's rstd", op.rstd, rows, kOneARow);
    check_size("the size of LayerNorm's weight", op.weight, channels, kOneAChannel);
    check_size("the size of LayerNorm's bias", op.bias, channels, kOneAChannel);
}

}  // namespace

template <class T>
void layernorm_forward(const LayerNormForward<T>& op, StreamRef stream) {
    check_forward<T>(op);
    launch_forward<T>(op, stream);
}

template <class T>
void residual_layernorm_forward(const ResidualLayerNormForward<T>& op, StreamRef stream) {
    check_forward<T>(op);
    const std::size_t elements = std::size_t(op.rows) * op.channels;
    check_size("the size of LayerNorm's left", op.left, elements, kWholeTensor);
    check_size("the size of LayerNorm's right", op.right, elements, kWholeTensor);
    launch_forward<T>(op, stream);
}

std::size_t layernorm_backward_scratch(int channels) { return std::size_t(2) * kMostBlocks * channels; }

template <class T>
void layernorm_backward(const LayerNormBackward<T>& op, StreamRef stream) {
    check_shape(op.rows, op.channels, 16 / sizeof(T));
    const std::size_t rows = op.rows, channels = op.channels;
    check_size("the size of LayerNorm's dresidual", op.dresidual, rows * channels, kWholeTensor);
    check_size("the size of LayerNorm's dnormed", op.dnormed, rows * channels, kWholeTensor);
    check_size("the size of LayerNorm's residual", op.residual, rows * channels, kWholeTensor);
    check_size("the size of LayerNorm's mean", op.mean, rows, kOneARow);
    check_size("the size of LayerNorm's rstd", op.rstd, rows, kOneARow);
    check_size("the size of LayerNorm's weight", op.weight, channels, kOneAChannel);
    check_size("the size of LayerNorm's dweight", op.dweight, channels, kOneAChannel);
    check_size("the size of LayerNorm's dbias", op.dbias, channels, kOneAChannel);
    check_size("the size of LayerNorm's scratch", op.scratch, layernorm_backward_scratch(op.channels),
               "at least layernorm_backward_scratch(channels)");

    const int blocks = launch_backward(op, stream);
    const float* scratch = op.scratch.data();
    column_sums(op.dweight.data(), scratch, blocks, op.channels, blocks, op.accumulate_parameters, stream);
    column_sums(op.dbias.data(), scratch + blocks * channels, blocks, op.channels, blocks, op.accumulate_parameters,
                stream);
}

template void layernorm_forward(const LayerNormForward<float>&, StreamRef);
template void layernorm_forward(const LayerNormForward<bf16>&, StreamRef);
template void residual_layernorm_forward(const ResidualLayerNormForward<float>&, StreamRef);
template void residual_layernorm_forward(const ResidualLayerNormForward<bf16>&, StreamRef);
template void layernorm_backward(const LayerNormBackward<float>&, StreamRef);
template void layernorm_backward(const LayerNormBackward<bf16>&, StreamRef);

}  // namespace kernels
