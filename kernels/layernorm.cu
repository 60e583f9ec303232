// layernorm.cu - the launchers of LayerNorm: with rows in a GPU's registers (layernorm_rows.cuh), and by loops
// (layernorm_loop.cuh) on a CPU and for wider rows
//
// After the backward pass layernorm_sums_kernel adds dweight and dbias over the blocks, and layernorm_dresidual_sum()
// launches it again for the sum of dresidual.
#include "kernels/layernorm.h"

#include <algorithm>

#include "kernels/device/limits.h"
#include "kernels/layernorm_check.h"
#include "kernels/layernorm_rows.cuh"
#include "kernels/row_sum.cuh"

namespace kernels {
namespace {

// Rows per block of the loop kernels: four, one warp each, on a GPU; on a CPU 1, 16 and 64 take the same time.
constexpr int kLoopWarps = 4, kForwardCpuRows = 16;

template <class T, class Op>
void launch_forward(const Op& op, StreamRef stream) {
    if constexpr (simt::gpu_geometry) {
        const bool launched = with_row_layout<T, Pass::forward>(op.channels, [&]<class Layout>(int row_warps) {
            const int warps = Layout::row_per_block ? row_warps : kForwardWarps<Layout>;
            const int blocks_per_multiprocessor = kForwardBlocks<Layout> * (kForwardWarps<Layout> / warps);
            const int blocks = blocks_per_multiprocessor * device::limits().multiprocessors;
            simt::launch<layernorm_forward_kernel<Op, T, Layout>>(
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

// Rows per CPU block: with 32 and 128, 1024 x 768 fp32 takes 0.26 ms on one core; with 2, 0.29 ms, because more sums
// are cleared and added.
constexpr int kMaxCpuBlocks = 256, kBackwardCpuRows = 32;
// Blocks per multiprocessor, of one warp each, if a row is too wide for registers.
constexpr int kLoopBlocks = 2;

// The size of the grid: the blocks that can be resident at once by their registers. Each has its own sums. Where a
// multiprocessor has only 100 KiB of shared memory (compute capability 8.6, 8.9, 12.0), fewer are resident at once.
template <class Layout>
int resident_blocks(int row_warps) {
    const int per_multiprocessor = Layout::row_per_block ? kMaxRowWarps / row_warps : kBackwardBlocks<Layout>;
    return per_multiprocessor * device::limits().multiprocessors;
}
template <class T>
int max_backward_blocks(int channels) {
    if (!simt::gpu_geometry) return kMaxCpuBlocks;
    int blocks = kLoopBlocks * device::limits().multiprocessors;
    with_row_layout<T, Pass::backward>(
        channels, [&]<class Layout>(int row_warps) { blocks = resident_blocks<Layout>(row_warps); });
    return blocks;
}

// The grid of a backward pass. `scratch` holds `blocks` partial sums per channel.
struct BackwardBlocks {
    int blocks, rows_per_block;  // rows_per_block: only for the loop kernels, whose blocks process neighbouring rows
};
template <class T>
BackwardBlocks backward_blocks(int rows, int channels) {
    const auto loop = [&](int max_blocks, int min_rows) {
        const int rows_per_block = std::max(ceil_div(rows, max_blocks), min_rows);
        return BackwardBlocks{ceil_div(rows, rows_per_block), rows_per_block};
    };
    if (!simt::gpu_geometry) return loop(kMaxCpuBlocks, kBackwardCpuRows);
    BackwardBlocks result{};
    const bool in_registers = with_row_layout<T, Pass::backward>(channels, [&]<class Layout>(int row_warps) {
        const int warps = Layout::row_per_block ? row_warps : kBackwardWarps<Layout>;
        result.blocks = std::min(resident_blocks<Layout>(row_warps), ceil_div(rows, warps / row_warps));
    });
    return in_registers ? result : loop(kLoopBlocks * device::limits().multiprocessors, 1);
}

// Returns the number of blocks.
template <class T>
int launch_backward(const LayerNormBackward<T>& op, StreamRef stream) {
    const auto [blocks, rows_per_block] = backward_blocks<T>(op.rows, op.channels);
    if constexpr (simt::gpu_geometry) {
        const bool launched = with_row_layout<T, Pass::backward>(op.channels, [&, blocks = blocks]<class Layout>(
                                                                                  int row_warps) {
            const int warps = Layout::row_per_block ? row_warps : kBackwardWarps<Layout>;
            simt::launch<layernorm_backward_kernel<T, Layout>>(
                {.grid = unsigned(blocks), .block = unsigned(kWarp * warps),
                 .shared_bytes = Layout::row_per_block
                                     ? 0 : kBackwardSums * sizeof(float) * Layout::elements * kWarp * warps,
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

// Sums the channels of a slice over the blocks. block_sums: (gridDim.y, blocks, channels); blockIdx.y = 0 computes
// first_sum, 1 second_sum.
template <class Geometry>
__global__ void layernorm_sums_kernel(float* first_sum, float* second_sum, const float* block_sums, int blocks,
                                      int channels, int packs_per_slice, bool accumulate) {
    const int packs = channels / (Geometry::pack_bytes / int(sizeof(float))), first = blockIdx.x * packs_per_slice;
    const int end = first + packs_per_slice < packs ? first + packs_per_slice : packs;
    block_row_sum<Geometry>(blockIdx.y == 0 ? first_sum : second_sum,
                            block_sums + std::size_t(blockIdx.y) * blocks * channels, channels, Slice{first, end},
                            blocks, [](int i) { return i; }, accumulate);
}

// Launches layernorm_sums_kernel; second_sum may be nullptr. Not measured: a GPU uses slices of 32 channels, so that
// GPT-2's 2 * 768 channels give 48 blocks; the 32 groups of 8 threads of a block share the rows. A CPU uses slices of
// 1 KiB. This is a template so that a GPU build instantiates only the GPU geometry.
template <bool GpuGeometry = simt::gpu_geometry>
void sum_over_blocks(float* first_sum, float* second_sum, const float* block_sums, int blocks, int channels,
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
    const int blocks = std::max(max_backward_blocks<float>(channels), max_backward_blocks<bf16>(channels));
    return std::size_t(kBackwardSums) * blocks * channels;
}

template <class T>
void layernorm_backward(const LayerNormBackward<T>& op, StreamRef stream) {
    check_layernorm_backward(op);
    const int blocks = launch_backward(op, stream);
    sum_over_blocks(op.dweight.data(), op.dbias.data(), op.scratch.data(), blocks, op.channels,
                    op.accumulate_parameters, stream);
}

template <class T>
void layernorm_dresidual_sum(const LayerNormDresidualSum& op, StreamRef stream) {
    check_layernorm_dresidual_sum<T>(op);
    const int blocks = backward_blocks<T>(op.rows, op.channels).blocks;
    constexpr std::size_t kSumsBefore = 2;  // dweight and dbias come first in `scratch`
    sum_over_blocks(op.sum.data(), nullptr, &op.scratch[kSumsBefore * blocks * op.channels], blocks, op.channels,
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
