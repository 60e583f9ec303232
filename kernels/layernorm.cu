// layernorm.cu - LayerNorm of rows that a GPU holds in registers, and the launchers, which take the loops of
// layernorm_loop.cuh on a CPU and for rows wider than that
//
// A row is read once: its loads are under way before the first of them is needed, and the rest happens in registers.
// Backward, each thread also keeps the sums for dweight, dbias and of dresidual of its channels over all its rows. They
// are added up over a block's warps once, at its end, and over the blocks by a second kernel, for dweight and dbias at
// once, and by a third launch for dresidual, where it is asked for.
#include "kernels/layernorm.h"

#include <algorithm>

#include "kernels/device/limits.h"
#include "kernels/layernorm_check.h"
#include "kernels/layernorm_loop.cuh"
#include "kernels/row_sum.cuh"
#include "kernels/widen.cuh"

namespace kernels {
namespace {

// ---- rows in registers

constexpr int kWarp = 32, kMostRowWarps = 16;
enum class Pass { forward, backward };

// How rows lie in registers: a thread holds packs lane, lane + lanes, ... of its row, `Packs` at most. A row belongs to
// a warp, and takes no barrier, or (RowPerBlock) to a block of as many warps as it needs.
template <class T, int Packs_, bool RowPerBlock_>
struct Form {
    static constexpr int packs = Packs_, pack_size = kGpuPackBytes / sizeof(T), elements = packs * pack_size;
    static constexpr bool row_per_block = RowPerBlock_;
};

// A pack as the words in which it was loaded. As elements, nvcc gives every bf16 a register of its own.
template <class T>
struct WordPack {
    static constexpr int size = kGpuPackBytes / sizeof(T);
    unsigned word[kGpuPackBytes / sizeof(unsigned)] = {};
    __device__ float operator[](int k) const {
        if constexpr (sizeof(T) == sizeof(float)) return __uint_as_float(word[k]);
        else return k % 2 == 0 ? lower_element(word[k / 2]) : upper_element(word[k / 2]);
    }
};

// Its place in this thread.
template <class T, class F>
struct Row {
    using Pack = WordPack<T>;
    using Packs = Pack[F::packs];
    int lane, lanes, packs, first, step;  // first, step: the rows that come to this thread
    __device__ explicit Row(int channels) : packs(channels / Pack::size) {
        if constexpr (F::row_per_block) {
            lane = threadIdx.x, lanes = blockDim.x, first = blockIdx.x, step = gridDim.x;
        } else {
            const int warps = blockDim.x / kWarp;
            lane = threadIdx.x % kWarp, lanes = kWarp;
            first = blockIdx.x * warps + threadIdx.x / kWarp, step = gridDim.x * warps;
        }
    }
    __device__ int pack(int p) const { return lane + p * lanes; }
    __device__ bool has(int p) const { return pack(p) < packs; }
    // Of the first `wanted` packs; where there are no more, `to` stays as it was.
    __device__ void load(Packs& to, const T* row, int wanted) const {
        UNROLLED for (int p = 0; p < F::packs; ++p)
            if (pack(p) < wanted) to[p] = std::bit_cast<Pack>(kernels::load<kGpuPackBytes>(row + pack(p) * Pack::size));
    }
    __device__ void load(Packs& to, const T* row) const { load(to, row, packs); }
    // So that elements are unpacked again after this, instead of keeping a register each.
    __device__ void renew(Packs& packs) const {
        UNROLLED for (Pack& pack : packs)
            UNROLLED for (unsigned& word : pack.word) kernels::renew(word);
    }
    // Rounds; `rounded` is what was stored.
    __device__ Pack store(T* row, int p, const float (&from)[Pack::size]) const {
        kernels::Pack<T, kGpuPackBytes> rounded;
        UNROLLED for (int k = 0; k < Pack::size; ++k) rounded[k] = round_to<T>(from[k]);
        if (has(p)) kernels::store(row + pack(p) * Pack::size, rounded);
        return std::bit_cast<Pack>(rounded);
    }
};

// Adds up each of the sums over the threads of a row, in the same order in all of them. Where that is a block, calls
// take turns 0, 1, 0, ...: whoever writes a turn's sums again has met the others at the turn between, after they read
// these.
template <class F, int Count>
__device__ void add_up_row(float (&sums)[Count], [[maybe_unused]] int turn) {
    UNROLLED for (float& sum : sums) sum = lanes_sum<kWarp>(sum);
    if constexpr (F::row_per_block) {
        SIMT_SHARED(float, warp_sums, [2][Count][kMostRowWarps]);
        const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
        if (threadIdx.x % kWarp == 0)
            UNROLLED for (int i = 0; i < Count; ++i) warp_sums[turn][i][warp] = sums[i];
        __syncthreads();
        UNROLLED for (int i = 0; i < Count; ++i) {
            sums[i] = 0.0f;
            for (int other = 0; other < warps; ++other) sums[i] += warp_sums[turn][i][other];
        }
    }
}

// Warps of a block, at most where that is a row, and blocks of a multiprocessor, to which registers are limited: 80 a
// thread for a warp's row of three packs, 168 for one of seven, else 128. Not measured.
template <class F>
inline constexpr int kForwardWarps = F::row_per_block ? kMostRowWarps : F::packs > 6 ? 4 : 8;
template <class F>
inline constexpr int kForwardBlocks = F::row_per_block ? 1 : F::packs > 3 && F::packs <= 6 ? 2 : 3;

template <class Op, class T, class F>
__global__ void __launch_bounds__(kWarp* kForwardWarps<F>, kForwardBlocks<F>) layernorm_forward_kernel(Op op) {
    using Pack = typename Row<T, F>::Pack;
    using Packs = typename Row<T, F>::Packs;
    const Row<T, F> row(op.channels);
    for (int r = row.first; r < op.rows; r += row.step) {
        const std::size_t first = std::size_t(r) * op.channels;
        Packs residual{}, weight{}, bias{};
        if constexpr (kFusedLayerNorm<Op, T>) {
            Packs right{};
            row.load(residual, &op.left[first]);
            row.load(right, &op.right[first]);
            UNROLLED for (int p = 0; p < F::packs; ++p) {
                float sum[Pack::size];
                UNROLLED for (int k = 0; k < Pack::size; ++k) sum[k] = residual[p][k] + right[p][k];
                residual[p] = row.store(&op.residual[first], p, sum);
            }
        } else {
            row.load(residual, &op.residual[first]);
        }

        Partial<2> partial;
        UNROLLED for (int p = 0; p < F::packs; ++p)
            UNROLLED for (int k = 0; k < Pack::size; ++k) partial[k % 2] += residual[p][k];
        float sum[] = {partial.total()};
        add_up_row<F>(sum, 0);
        const float mean = sum[0] / op.channels;

        Partial<2> squares;
        UNROLLED for (int p = 0; p < F::packs; ++p)
            UNROLLED for (int k = 0; k < Pack::size; ++k) {
                const float centred = row.has(p) ? residual[p][k] - mean : 0.0f;
                squares[k % 2] += centred * centred;
            }
        row.load(weight, op.weight.data());
        row.load(bias, op.bias.data());
        float square_sum[] = {squares.total()};
        add_up_row<F>(square_sum, 1);
        const float rstd = rsqrtf(square_sum[0] / op.channels + kLayerNormEpsilon);

        row.renew(residual);
        UNROLLED for (int p = 0; p < F::packs; ++p) {
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

// The same here: 168 registers a thread with three packs, 128 for a block's row, else 255. A block adds up its warps'
// sums through shared memory, 60 KiB at most.
template <class F>
inline constexpr int kBackwardWarps = F::row_per_block ? kMostRowWarps : 4;
template <class F>
inline constexpr int kBackwardBlocks = F::row_per_block ? 1 : F::packs > 3 ? 2 : 3;
constexpr int kBackwardSums = 3;

// scratch: of dweight (blocks, channels), then of dbias, then of dresidual.
template <class T, class F>
__global__ void __launch_bounds__(kWarp * kBackwardWarps<F>, kBackwardBlocks<F>)
layernorm_backward_kernel(LayerNormBackward<T> op) {
    using Pack = typename Row<T, F>::Pack;
    using Packs = typename Row<T, F>::Packs;
    const Row<T, F> row(op.channels);
    const int packs_to_add = op.accumulate_dresidual ? row.packs : 0;
    float sums[kBackwardSums][F::packs][Pack::size] = {};  // of dweight, dbias and dresidual
    int turn = 0;

    for (int r = row.first; r < op.rows; r += row.step) {
        const std::size_t first = std::size_t(r) * op.channels;
        Packs dnormed{}, residual{}, dresidual{}, weight{};
        row.load(dnormed, &op.dnormed[first]);
        row.load(residual, &op.residual[first]);
        row.load(dresidual, &op.dresidual[first], packs_to_add);
        const float mean = op.mean[r], rstd = op.rstd[r];
        row.load(weight, op.weight.data());

        Partial<2> g_partial, gn_partial;
        UNROLLED for (int p = 0; p < F::packs; ++p)
            UNROLLED for (int k = 0; k < Pack::size; ++k) {
                const float g = weight[p][k] * dnormed[p][k], n = (residual[p][k] - mean) * rstd;
                g_partial[k % 2] += g;
                gn_partial[k % 2] += g * n;
            }
        float g_sums[] = {g_partial.total(), gn_partial.total()};
        add_up_row<F>(g_sums, turn);
        turn ^= 1;
        const float g_mean = g_sums[0] / op.channels, gn_mean = g_sums[1] / op.channels;

        row.renew(dnormed);
        row.renew(residual);
        row.renew(weight);
        UNROLLED for (int p = 0; p < F::packs; ++p) {
            float slope[Pack::size];
            UNROLLED for (int k = 0; k < Pack::size; ++k) {
                const float d = dnormed[p][k], n = (residual[p][k] - mean) * rstd;
                slope[k] = dresidual[p][k] + (weight[p][k] * d - g_mean - n * gn_mean) * rstd;
                sums[0][p][k] += d * n;
                sums[1][p][k] += d;
            }
            const Pack stored = row.store(&op.dresidual[first], p, slope);
            UNROLLED for (int k = 0; k < Pack::size; ++k) sums[2][p][k] += stored[k];
        }
    }

    using Chunk = kernels::Pack<float, kGpuPackBytes>;
    constexpr int kPackChunks = Pack::size / Chunk::size, kChunks = F::packs * kPackChunks;
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
    if constexpr (F::row_per_block) {
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

// Calls launch.template operator()<Form>(warps of a row) with the form for so many channels, and says whether there is
// one. Every published width of GPT-2 has rows of one warp in bf16 (768, 1024 to 1280, 1600 channels), and 768 in fp32,
// where wider ones take a block; so do 1600 channels backward, whose sums take registers, too.
template <class T, Pass pass, class Launch>
bool with_form(int channels, Launch&& launch) {
    const int packs = channels * int(sizeof(T)) / kGpuPackBytes;
    constexpr int kBlockPacks = pass == Pass::forward ? 3 : 2;
    const auto take = [&]<class F>(F, int row_warps) {
        launch.template operator()<F>(row_warps);
        return true;
    };
    const auto fits = [&](int a_lane) { return packs <= a_lane * kWarp; };
    if constexpr (sizeof(T) == 2) {
        if (fits(3)) return take(Form<T, 3, false>(), 1);
        if (fits(5)) return take(Form<T, 5, false>(), 1);
        if constexpr (pass == Pass::forward)
            if (fits(7)) return take(Form<T, 7, false>(), 1);
    } else {
        if (fits(6)) return take(Form<T, 6, false>(), 1);
    }
    const int warps = (packs + kBlockPacks * kWarp - 1) / (kBlockPacks * kWarp);
    return warps <= kMostRowWarps && take(Form<T, kBlockPacks, true>(), warps);
}

// ---- launchers

// The loops' blocks have four rows, a warp each, on a GPU; on a CPU 1, 16 or 64 rows a block take the same time.
constexpr int kLoopWarps = 4, kForwardCpuRows = 16;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

template <class T, class Op>
void launch_forward(const Op& op, StreamRef stream) {
    if constexpr (simt::gpu_geometry) {
        const bool launched = with_form<T, Pass::forward>(op.channels, [&]<class F>(int row_warps) {
            const int warps = F::row_per_block ? row_warps : kForwardWarps<F>;
            const int blocks = kForwardBlocks<F> * (kForwardWarps<F> / warps) * device::limits().multiprocessors;
            simt::launch<layernorm_forward_kernel<Op, T, F>>(
                {.grid = unsigned(std::min(blocks, ceil_div(op.rows, warps / row_warps))),
                 .block = unsigned(kWarp * warps), .stream = stream}, op);
        });
        if (!launched)
            simt::launch<layernorm_forward_loop_kernel<Op, T, kWarp, kGpuPackBytes>>(
                {.grid = unsigned(ceil_div(op.rows, kLoopWarps)), .block = kWarp * kLoopWarps, .stream = stream}, op,
                kLoopWarps);
    } else {
        const simt::LaunchConfig config{.grid = unsigned(ceil_div(op.rows, kForwardCpuRows)), .block = 1,
                                        .stream = stream};
        if (op.channels % kCpuPackElements == 0)
            simt::launch<layernorm_forward_loop_kernel<Op, T, 1, kCpuRowPackBytes<T>>>(config, op, kForwardCpuRows);
        else simt::launch<layernorm_forward_loop_kernel<Op, T, 1, 16>>(config, op, kForwardCpuRows);
    }
}

// A CPU block of 32 rows: 0.26 ms on one core for 1024 x 768 fp32, as with 128; with 2, 0.29 ms, for clearing and
// adding up more sums.
constexpr int kMostCpuBlocks = 256, kBackwardCpuRows = 32;
// Blocks of one warp of a multiprocessor, where a row is too wide for registers.
constexpr int kLoopBlocks = 2;

// Blocks that a GPU has at work, each of which has sums of its own. Where a multiprocessor has 100 KiB of shared memory
// for all its blocks (compute capability 8.6, 8.9, 12.0), some wait for the others.
template <class F>
int blocks_at_work(int row_warps) {
    const int a_multiprocessor = F::row_per_block ? kMostRowWarps / row_warps : kBackwardBlocks<F>;
    return a_multiprocessor * device::limits().multiprocessors;
}
template <class T>
int most_backward_blocks(int channels) {
    if (!simt::gpu_geometry) return kMostCpuBlocks;
    int blocks = kLoopBlocks * device::limits().multiprocessors;
    with_form<T, Pass::backward>(channels, [&]<class F>(int row_warps) { blocks = blocks_at_work<F>(row_warps); });
    return blocks;
}

// The blocks of a backward pass, which is how many sums each channel has in `scratch`.
struct BackwardBlocks {
    int blocks, rows_per_block;  // the latter where blocks loop over neighbouring rows
};
template <class T>
BackwardBlocks backward_blocks(int rows, int channels) {
    const auto loop = [&](int most, int fewest_rows) {
        const int rows_per_block = std::max(ceil_div(rows, most), fewest_rows);
        return BackwardBlocks{ceil_div(rows, rows_per_block), rows_per_block};
    };
    if (!simt::gpu_geometry) return loop(kMostCpuBlocks, kBackwardCpuRows);
    BackwardBlocks result{};
    const bool in_registers = with_form<T, Pass::backward>(channels, [&]<class F>(int row_warps) {
        const int warps = F::row_per_block ? row_warps : kBackwardWarps<F>;
        result.blocks = std::min(blocks_at_work<F>(row_warps), ceil_div(rows, warps / row_warps));
    });
    return in_registers ? result : loop(kLoopBlocks * device::limits().multiprocessors, 1);
}

// Returns the number of blocks.
template <class T>
int launch_backward(const LayerNormBackward<T>& op, StreamRef stream) {
    const auto [blocks, rows_per_block] = backward_blocks<T>(op.rows, op.channels);
    if constexpr (simt::gpu_geometry) {
        const bool launched = with_form<T, Pass::backward>(op.channels, [&, blocks = blocks]<class F>(int row_warps) {
            const int warps = F::row_per_block ? row_warps : kBackwardWarps<F>;
            simt::launch<layernorm_backward_kernel<T, F>>(
                {.grid = unsigned(blocks), .block = unsigned(kWarp * warps),
                 .shared_bytes = F::row_per_block ? 0 : kBackwardSums * sizeof(float) * F::elements * kWarp * warps,
                 .stream = stream}, op);
        });
        if (!launched)
            simt::launch<layernorm_backward_loop_kernel<T, kWarp, kGpuPackBytes>>(
                {.grid = unsigned(blocks), .block = kWarp, .stream = stream}, op, rows_per_block);
    } else {
        const simt::LaunchConfig config{.grid = unsigned(blocks), .block = 1, .stream = stream};
        if (op.channels % kCpuPackElements == 0)
            simt::launch<layernorm_backward_loop_kernel<T, 1, kCpuRowPackBytes<T>>>(config, op, rows_per_block);
        else simt::launch<layernorm_backward_loop_kernel<T, 1, 16>>(config, op, rows_per_block);
    }
    return blocks;
}

// The sums of a slice's channels over the blocks, whose sums are (blocks, channels): those of blockIdx.y = 1 follow
// those of 0.
template <class Geometry>
__global__ void layernorm_sums_kernel(float* first_sum, float* second_sum, const float* block_sums, int blocks,
                                      int channels, int packs_per_slice, bool accumulate) {
    const int packs = channels / (Geometry::pack_bytes / int(sizeof(float))), first = blockIdx.x * packs_per_slice;
    const int end = first + packs_per_slice < packs ? first + packs_per_slice : packs;
    block_row_sum<Geometry>(blockIdx.y == 0 ? first_sum : second_sum,
                            block_sums + std::size_t(blockIdx.y) * blocks * channels, channels, Slice{first, end},
                            blocks, [](int i) { return i; }, accumulate);
}

// On a GPU in slices of 32 channels, so that GPT-2's 2 * 768 make 48 blocks, of 32 teams that share the rows: not
// measured. A CPU takes slices of 1 KiB.
// second_sum may be nullptr. A template, so that a GPU has its geometry only.
template <bool GpuGeometry = simt::gpu_geometry>
void add_up_blocks(float* first_sum, float* second_sum, const float* block_sums, int blocks, int channels,
                   bool accumulate, StreamRef stream) {
    const auto launch = [&]<class Geometry>(Geometry, int packs_per_slice) {
        const int packs = channels / (Geometry::pack_bytes / int(sizeof(float)));
        simt::launch<layernorm_sums_kernel<Geometry>>(
            {.grid = {unsigned(ceil_div(packs, packs_per_slice)), second_sum ? 2u : 1u}, .block = Geometry::threads,
             .stream = stream},
            first_sum, second_sum, block_sums, blocks, channels, packs_per_slice, accumulate);
    };
    if constexpr (GpuGeometry) launch(RowSumGeometry<8, 32, kGpuPackBytes>{}, 8);
    else if (channels % kCpuPackElements == 0) launch(RowSumGeometry<1, 1, kCpuRowPackBytes<float>>{}, 8);
    else launch(RowSumGeometry<1, 1, 16>{}, 64);
}

}  // namespace

template <class T>
void layernorm_forward(const LayerNormForward<T>& op, StreamRef stream) {
    check_layernorm_forward<T>(op);
    launch_forward<T>(op, stream);
}

template <class T>
void residual_layernorm_forward(const ResidualLayerNormForward<T>& op, StreamRef stream) {
    check_layernorm_forward<T>(op);
    launch_forward<T>(op, stream);
}

std::size_t layernorm_backward_scratch(int channels) {
    const int blocks = std::max(most_backward_blocks<float>(channels), most_backward_blocks<bf16>(channels));
    return std::size_t(kBackwardSums) * blocks * channels;
}

template <class T>
void layernorm_backward(const LayerNormBackward<T>& op, StreamRef stream) {
    check_layernorm_backward(op);
    const int blocks = launch_backward(op, stream);
    add_up_blocks(op.dweight.data(), op.dbias.data(), op.scratch.data(), blocks, op.channels, op.accumulate_parameters,
                  stream);
}

template <class T>
void layernorm_dresidual_sum(const LayerNormDresidualSum& op, StreamRef stream) {
    check_layernorm_dresidual_sum<T>(op);
    const int blocks = backward_blocks<T>(op.rows, op.channels).blocks;
    constexpr std::size_t kBefore = 2;  // sums of dweight and dbias
    add_up_blocks(op.sum.data(), nullptr, &op.scratch[kBefore * blocks * op.channels], blocks, op.channels,
                  op.accumulate, stream);
}

template void layernorm_forward(const LayerNormForward<float>&, StreamRef);
template void layernorm_forward(const LayerNormForward<bf16>&, StreamRef);
template void residual_layernorm_forward(const ResidualLayerNormForward<float>&, StreamRef);
template void residual_layernorm_forward(const ResidualLayerNormForward<bf16>&, StreamRef);
template void layernorm_backward(const LayerNormBackward<float>&, StreamRef);
template void layernorm_backward(const LayerNormBackward<bf16>&, StreamRef);
template void layernorm_dresidual_sum<float>(const LayerNormDresidualSum&, StreamRef);
template void layernorm_dresidual_sum<bf16>(const LayerNormDresidualSum&, StreamRef);

}  // namespace kernels
