// layernorm_rows.cuh - LayerNorm with rows in a GPU's registers
//
// A row is read once: all its loads are issued before the first value is used, and the rest happens in registers. In
// the backward pass each thread also accumulates dweight, dbias and the sum of dresidual of its channels over all its
// rows. At the end a block adds these sums over its warps; layernorm.cu adds them over the blocks.
#pragma once
#include "kernels/device/limits.h"
#include "kernels/layernorm.h"
#include "kernels/layernorm_loop.cuh"
#include "kernels/widen.cuh"

namespace kernels {

inline constexpr int kMaxRowWarps = 16;
enum class Pass { forward, backward };

// The layout of rows in registers: a thread holds packs lane, lane + lanes, ... of its row, at most `LanePacks`. A row
// is processed by one warp, without barriers, or (RowPerBlock) by a block of as many warps as it needs.
template <class T, Pass pass, int LanePacks, bool RowPerBlock>
struct RowLayout {
    static constexpr int lane_packs = LanePacks, elements = LanePacks * (kGpuPackBytes / sizeof(T));
    static constexpr bool row_per_block = RowPerBlock;
    // Warps per block (the maximum if a row takes a block) and minimum blocks per multiprocessor, for
    // __launch_bounds__. They limit the registers per thread to 128 if a row takes a block; otherwise forward to 80 up
    // to three packs, 128 up to six, 168 with seven; backward to 168 up to three packs, then to 255. Not measured.
    static constexpr int max_warps = RowPerBlock ? kMaxRowWarps : pass == Pass::forward && LanePacks <= 6 ? 8 : 4;
    static constexpr int min_blocks = RowPerBlock ? 1 : LanePacks > 3 && LanePacks <= 6 ? 2 : 3;
};

// Launches as many blocks as can be resident at once by their registers. Where a multiprocessor has only 100 KiB of
// shared memory (compute capability 8.6, 8.9, 12.0), fewer are resident in a backward pass.
struct RowGrid {
    int blocks, warps;  // warps: per block
};

// A pack stored as 32-bit words. As an array of elements, nvcc would give every bf16 its own register.
template <class T>
struct WordPack {
    static constexpr int size = kGpuPackBytes / sizeof(T);
    unsigned word[kGpuPackBytes / sizeof(unsigned)] = {};
    __device__ float operator[](int k) const {
        if constexpr (sizeof(T) == sizeof(float)) return __uint_as_float(word[k]);
        else return k % 2 == 0 ? lower_element(word[k / 2]) : upper_element(word[k / 2]);
    }
};

// This thread's slice of a row.
template <class T, class Layout>
struct RowSlice {
    using Pack = WordPack<T>;
    using Packs = Pack[Layout::lane_packs];
    int lane, lanes, packs, first, step;  // packs: of the whole row. This thread works on rows first, first + step, ...
    __device__ explicit RowSlice(int channels) : packs(channels / Pack::size) {
        if constexpr (Layout::row_per_block) {
            lane = threadIdx.x, lanes = blockDim.x, first = blockIdx.x, step = gridDim.x;
        } else {
            const int warps = blockDim.x / kWarp;
            lane = threadIdx.x % kWarp, lanes = kWarp;
            first = blockIdx.x * warps + threadIdx.x / kWarp, step = gridDim.x * warps;
        }
    }
    __device__ int pack(int p) const { return lane + p * lanes; }
    __device__ bool has(int p) const { return pack(p) < packs; }
    // Loads those of the row's first `count` packs that belong to this thread; the rest of `to` is unchanged.
    __device__ void load(Packs& to, const T* row, int count) const {
        UNROLLED for (int p = 0; p < Layout::lane_packs; ++p)
            if (pack(p) < count) to[p] = std::bit_cast<Pack>(kernels::load<kGpuPackBytes>(row + pack(p) * Pack::size));
    }
    __device__ void load(Packs& to, const T* row) const { load(to, row, packs); }
    // Makes the values opaque to the compiler, so that it unpacks them again after this point instead of keeping each
    // element in its own register.
    __device__ void hide_from_compiler(Packs& packs) const {
        UNROLLED for (Pack& pack : packs)
            UNROLLED for (unsigned& word : pack.word) kernels::hide_from_compiler(word);
    }
    // Rounds and stores pack p; returns the rounded values.
    __device__ Pack store(T* row, int p, const float (&from)[Pack::size]) const {
        kernels::Pack<T, kGpuPackBytes> rounded;
        UNROLLED for (int k = 0; k < Pack::size; ++k) rounded[k] = round_to<T>(from[k]);
        if (has(p)) kernels::store(row + pack(p) * Pack::size, rounded);
        return std::bit_cast<Pack>(rounded);
    }
};

// All-reduces each of the sums over the threads of a row, in the same order in all threads. If a row takes a block,
// consecutive calls alternate between buffers 0 and 1: before a thread overwrites a buffer, the barrier of the call in
// between guarantees that all threads have read it.
template <class Layout, int Count>
__device__ void reduce_row(float (&sums)[Count], [[maybe_unused]] int buffer) {
    UNROLLED for (float& sum : sums) sum = warp_sum<kWarp>(sum);
    if constexpr (Layout::row_per_block) {
        SIMT_SHARED(float, warp_sums, [2][Count][kMaxRowWarps]);
        const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
        if (threadIdx.x % kWarp == 0)
            UNROLLED for (int i = 0; i < Count; ++i) warp_sums[buffer][i][warp] = sums[i];
        __syncthreads();
        UNROLLED for (int i = 0; i < Count; ++i) {
            sums[i] = 0.0f;
            for (int other = 0; other < warps; ++other) sums[i] += warp_sums[buffer][i][other];
        }
    }
}

template <class Op, class T, class Layout>
__global__ void __launch_bounds__(kWarp* Layout::max_warps, Layout::min_blocks)
layernorm_forward_kernel(Op op) {
    using Pack = typename RowSlice<T, Layout>::Pack;
    using Packs = typename RowSlice<T, Layout>::Packs;
    const RowSlice<T, Layout> row(op.channels);
    for (int r = row.first; r < op.rows; r += row.step) {
        const std::size_t first = std::size_t(r) * op.channels;
        Packs residual{}, weight{}, bias{};
        if constexpr (kFusedLayerNorm<Op, T>) {
            Packs right{};
            row.load(residual, &op.left[first]);
            row.load(right, &op.right[first]);
            UNROLLED for (int p = 0; p < Layout::lane_packs; ++p) {
                float sum[Pack::size];
                UNROLLED for (int k = 0; k < Pack::size; ++k) sum[k] = residual[p][k] + right[p][k];
                residual[p] = row.store(&op.residual[first], p, sum);
            }
        } else {
            row.load(residual, &op.residual[first]);
        }

        Partial<2> partial;
        UNROLLED for (int p = 0; p < Layout::lane_packs; ++p)
            UNROLLED for (int k = 0; k < Pack::size; ++k) partial[k % 2] += residual[p][k];
        float sum[] = {partial.total()};
        reduce_row<Layout>(sum, 0);
        const float mean = sum[0] / op.channels;

        Partial<2> squares;
        UNROLLED for (int p = 0; p < Layout::lane_packs; ++p)
            UNROLLED for (int k = 0; k < Pack::size; ++k) {
                const float centred = row.has(p) ? residual[p][k] - mean : 0.0f;
                squares[k % 2] += centred * centred;
            }
        row.load(weight, op.weight.data());
        row.load(bias, op.bias.data());
        float square_sum[] = {squares.total()};
        reduce_row<Layout>(square_sum, 1);
        const float rstd = rsqrtf(square_sum[0] / op.channels + kLayerNormEpsilon);

        row.hide_from_compiler(residual);
        UNROLLED for (int p = 0; p < Layout::lane_packs; ++p) {
            float normed[Pack::size];
            UNROLLED for (int k = 0; k < Pack::size; ++k)
                normed[k] = (residual[p][k] - mean) * rstd * weight[p][k] + bias[p][k];
            row.store(&op.normed[first], p, normed);
        }
        if (row.lane == 0) {
            op.mean[r] = mean;
            op.rstd[r] = rstd;
        }
    }
}

inline constexpr int kBackwardSums = 3;

// scratch: sums of dweight (blocks, channels), then of dbias, then of dresidual. A block adds its warps' sums through
// shared memory, at most 60 KiB.
template <class T, class Layout>
__global__ void __launch_bounds__(kWarp* Layout::max_warps, Layout::min_blocks)
layernorm_backward_kernel(LayerNormBackward<T> op) {
    using Pack = typename RowSlice<T, Layout>::Pack;
    using Packs = typename RowSlice<T, Layout>::Packs;
    const RowSlice<T, Layout> row(op.channels);
    const int packs_to_add = op.accumulate_dresidual ? row.packs : 0;
    float sums[kBackwardSums][Layout::lane_packs][Pack::size] = {};  // of dweight, dbias and dresidual
    int buffer = 0;

    for (int r = row.first; r < op.rows; r += row.step) {
        const std::size_t first = std::size_t(r) * op.channels;
        Packs dnormed{}, residual{}, dresidual{}, weight{};
        row.load(dnormed, &op.dnormed[first]);
        row.load(residual, &op.residual[first]);
        row.load(dresidual, &op.dresidual[first], packs_to_add);
        const float mean = op.mean[r], rstd = op.rstd[r];
        row.load(weight, op.weight.data());

        Partial<2> g_partial, gn_partial;
        UNROLLED for (int p = 0; p < Layout::lane_packs; ++p)
            UNROLLED for (int k = 0; k < Pack::size; ++k) {
                const float g = weight[p][k] * dnormed[p][k], n = (residual[p][k] - mean) * rstd;
                g_partial[k % 2] += g;
                gn_partial[k % 2] += g * n;
            }
        float g_sums[] = {g_partial.total(), gn_partial.total()};
        reduce_row<Layout>(g_sums, buffer);
        buffer ^= 1;
        const float g_mean = g_sums[0] / op.channels, gn_mean = g_sums[1] / op.channels;

        row.hide_from_compiler(dnormed);
        row.hide_from_compiler(residual);
        row.hide_from_compiler(weight);
        UNROLLED for (int p = 0; p < Layout::lane_packs; ++p) {
            float dx[Pack::size];
            UNROLLED for (int k = 0; k < Pack::size; ++k) {
                const float d = dnormed[p][k], n = (residual[p][k] - mean) * rstd;
                dx[k] = dresidual[p][k] + (weight[p][k] * d - g_mean - n * gn_mean) * rstd;
                sums[0][p][k] += d * n;
                sums[1][p][k] += d;
            }
            const Pack stored = row.store(&op.dresidual[first], p, dx);
            UNROLLED for (int k = 0; k < Pack::size; ++k) sums[2][p][k] += stored[k];
        }
    }

    using Chunk = kernels::Pack<float, kGpuPackBytes>;
    constexpr int kPackChunks = Pack::size / Chunk::size, kChunks = Layout::lane_packs * kPackChunks;
    const auto store_sum = [&](int which, int pack, int chunk, const Chunk& sum) {
        if (pack >= row.packs) return;
        store(&op.scratch[(std::size_t(which) * gridDim.x + blockIdx.x) * op.channels + pack * Pack::size +
                          chunk * Chunk::size], sum);
    };
    const auto chunk_of = [&](int which, int chunk) {
        Chunk sum;
        UNROLLED for (int k = 0; k < Chunk::size; ++k)
            sum[k] = sums[which][chunk / kPackChunks][chunk % kPackChunks * Chunk::size + k];
        return sum;
    };
    if constexpr (Layout::row_per_block) {
        UNROLLED for (int which = 0; which < kBackwardSums; ++which)
            UNROLLED for (int chunk = 0; chunk < kChunks; ++chunk)
                store_sum(which, row.pack(chunk / kPackChunks), chunk % kPackChunks, chunk_of(which, chunk));
    } else {
        SIMT_DYN_SHARED(Chunk, shared);  // [warps][kBackwardSums][kChunks][lanes]
        const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
        constexpr int kOfWarp = kBackwardSums * kChunks * kWarp;
        UNROLLED for (int which = 0; which < kBackwardSums; ++which)
            UNROLLED for (int chunk = 0; chunk < kChunks; ++chunk)
                shared[((warp * kBackwardSums + which) * kChunks + chunk) * kWarp + row.lane] = chunk_of(which, chunk);
        __syncthreads();
        for (int i = threadIdx.x; i < kOfWarp; i += blockDim.x) {
            Chunk sum = shared[i];
            for (int other = 1; other < warps; ++other)
                UNROLLED for (int k = 0; k < Chunk::size; ++k) sum[k] += shared[other * kOfWarp + i][k];
            const int chunk = i / kWarp % kChunks;
            store_sum(i / kWarp / kChunks, chunk / kPackChunks * kWarp + i % kWarp, chunk % kPackChunks, sum);
        }
    }
}

// Calls launch.template operator()<RowLayout>(RowGrid) with the layout for `channels`; returns false if the row is too
// wide for registers. In bf16 one warp holds a row of every published GPT-2 width (768, 1024 to 1280, 1600
// channels), in fp32 one of 768; wider rows take a block. In the backward pass rows of 1600 channels take a block in
// bf16, too, because its sums also need registers.
template <class T, Pass pass, class Launch>
bool with_row_layout(int rows, int channels, Launch&& launch) {
    const int packs = channels * int(sizeof(T)) / kGpuPackBytes;
    constexpr int kBlockPacks = pass == Pass::forward ? 3 : 2;
    const auto use = [&]<int LanePacks, bool RowPerBlock>(int row_warps) {
        using Layout = RowLayout<T, pass, LanePacks, RowPerBlock>;
        const int warps = RowPerBlock ? row_warps : Layout::max_warps;
        const int resident = Layout::min_blocks * (Layout::max_warps / warps) * device::limits().multiprocessors;
        launch.template operator()<Layout>(RowGrid{std::min(resident, ceil_div(rows, warps / row_warps)), warps});
        return true;
    };
    const auto fits = [&](int lane_packs) { return packs <= lane_packs * kWarp; };
    if constexpr (sizeof(T) == 2) {
        if (fits(3)) return use.template operator()<3, false>(1);
        if (fits(5)) return use.template operator()<5, false>(1);
        if constexpr (pass == Pass::forward)
            if (fits(7)) return use.template operator()<7, false>(1);
    } else {
        if (fits(6)) return use.template operator()<6, false>(1);
    }
    const int warps = ceil_div(packs, kBlockPacks * kWarp);
    return warps <= kMaxRowWarps && use.template operator()<kBlockPacks, true>(warps);
}

}  // namespace kernels
