// layernorm.cu - the launchers of LayerNorm: with rows in a GPU's registers (layernorm_rows.cuh), and by loops
// (layernorm_loop.cuh) on a CPU and for wider rows
//
// After the backward pass column_sums() adds dweight, dbias and the sum of dresidual over the blocks.
#include "kernels/layernorm.h"

#include <algorithm>
#include <climits>
#include <string>

#include "kernels/base/error.h"
#include "kernels/device/limits.h"
#include "kernels/layernorm_rows.cuh"
#include "kernels/row_sum.cuh"

namespace kernels {
namespace {

// Throws Error if the shape of an operation or the size of one of its spans is invalid.
template <class T, class Op>
void check_layernorm(const Op& op) {
    require(op.rows > 0, "rows of a LayerNorm", op.rows, "at least 1");
    require_multiple("channels of a LayerNorm", op.channels, 16 / sizeof(T));
    const std::size_t rows = op.rows, channels = op.channels;
    const auto size = [](const char* name, const auto& span, std::size_t least, const char* formula) {
        require_size("LayerNorm's " + std::string(name), span, least, formula);
    };
    const auto whole = [&](auto name, const auto& span) { size(name, span, rows * channels, "rows * channels"); };
    const auto one_per_channel = [&](auto name, const auto& span) { size(name, span, channels, "channels"); };
    whole("residual", op.residual);
    size("mean", op.mean, rows, "rows");
    size("rstd", op.rstd, rows, "rows");
    one_per_channel("weight", op.weight);
    if constexpr (requires { op.normed; }) whole("normed", op.normed), one_per_channel("bias", op.bias);
    if constexpr (requires { op.left; }) whole("left", op.left), whole("right", op.right);
    if constexpr (requires { op.dresidual; }) {
        whole("dresidual", op.dresidual);
        whole("dnormed", op.dnormed);
        one_per_channel("dweight", op.dweight);
        one_per_channel("dbias", op.dbias);
        if (!op.dresidual_sum.empty()) one_per_channel("dresidual_sum", op.dresidual_sum);
        size("scratch", op.scratch, layernorm_backward_scratch(op.channels), "layernorm_backward_scratch(channels)");
    }
}

// Rows and threads per block of the loop kernels: four rows, one warp each, on a GPU; on a CPU 1, 16 and 64 rows take
// the same time.
constexpr int kLoopRows = simt::gpu_geometry ? 4 : 16, kLoopThreads = simt::gpu_geometry ? 4 * kWarp : 1;

template <class T, class Op>
void launch_forward(const Op& op, StreamRef stream) {
    if constexpr (simt::gpu_geometry) {
        const bool launched = with_row_layout<T, Pass::forward>(op.rows, op.channels, [&]<class Layout>(RowGrid grid) {
            simt::launch<layernorm_forward_kernel<Op, T, Layout>>(
                {.grid = unsigned(grid.blocks), .block = unsigned(kWarp * grid.warps), .stream = stream}, op);
        });
        if (launched) return;
    }
    with_row_packs<T>(op.channels, [&]<int Lanes, int PackBytes>() {
        simt::launch<layernorm_forward_loop_kernel<Op, T, Lanes, PackBytes>>(
            {.grid = unsigned(ceil_div(op.rows, kLoopRows)), .block = kLoopThreads, .stream = stream}, op, kLoopRows);
    });
}

// Rows per CPU block: with 32 and 128, 1024 x 768 fp32 takes 0.26 ms on one core; with 2, 0.29 ms, because more sums
// are cleared and added.
constexpr int kMaxCpuBlocks = 256, kBackwardCpuRows = 32;
// Blocks per multiprocessor, of one warp each, if a row is too wide for registers.
constexpr int kLoopBlocks = 2;

// Neighbouring rows per block of the backward pass by loops.
int rows_per_block(int rows) {
    const int max_blocks = simt::gpu_geometry ? kLoopBlocks * device::limits().multiprocessors : kMaxCpuBlocks;
    return std::max(ceil_div(rows, max_blocks), simt::gpu_geometry ? 1 : kBackwardCpuRows);
}

// Blocks of a backward pass. Each has its own sums in `scratch`.
template <class T>
int backward_blocks(int rows, int channels) {
    int blocks = ceil_div(rows, rows_per_block(rows));
    if constexpr (simt::gpu_geometry)
        with_row_layout<T, Pass::backward>(rows, channels, [&]<class>(RowGrid grid) { blocks = grid.blocks; });
    return blocks;
}

template <class T>
void launch_backward(const LayerNormBackward<T>& op, int blocks, StreamRef stream) {
    if constexpr (simt::gpu_geometry) {
        const bool launched = with_row_layout<T, Pass::backward>(op.rows, op.channels, [&]<class Layout>(RowGrid grid) {
            const int threads = kWarp * grid.warps;
            simt::launch<layernorm_backward_kernel<T, Layout>>(
                {.grid = unsigned(grid.blocks), .block = unsigned(threads),
                 .shared_bytes = Layout::row_per_block ? 0 : kBackwardSums * sizeof(float) * Layout::elements * threads,
                 .stream = stream}, op);
        });
        if (launched) return;
    }
    with_row_packs<T>(op.channels, [&]<int Lanes, int PackBytes>() {
        simt::launch<layernorm_backward_loop_kernel<T, Lanes, PackBytes>>(
            {.grid = unsigned(blocks), .block = Lanes, .stream = stream}, op, rows_per_block(op.rows));
    });
}

// For the sums over blocks, not measured: slices of 32 channels, so that GPT-2's 2 * 768 channels give 48 blocks, whose
// 32 teams of 8 threads share the rows.
using SumsGeometry = RowSumGeometry<8, 32, kGpuPackBytes>;

}  // namespace

template <class T>
void layernorm_forward(const LayerNormForward<T>& op, StreamRef stream) {
    check_layernorm<T>(op);
    launch_forward<T>(op, stream);
}

template <class T>
void residual_layernorm_forward(const ResidualLayerNormForward<T>& op, StreamRef stream) {
    check_layernorm<T>(op);
    launch_forward<T>(op, stream);
}

std::size_t layernorm_backward_scratch(int channels) {
    const int blocks = std::max(backward_blocks<float>(INT_MAX, channels), backward_blocks<bf16>(INT_MAX, channels));
    return std::size_t(kBackwardSums) * blocks * channels;
}

template <class T>
void layernorm_backward(const LayerNormBackward<T>& op, StreamRef stream) {
    check_layernorm<T>(op);
    const int blocks = backward_blocks<T>(op.rows, op.channels);
    launch_backward(op, blocks, stream);
    ColumnSums<float> sums{op.dweight.data(), op.scratch.data(), blocks, op.channels, blocks, op.accumulate_parameters,
                           op.dbias.data()};
    column_sums<SumsGeometry>(sums, stream);
    if (op.dresidual_sum.empty()) return;
    sums.out = op.dresidual_sum.data(), sums.second_out = nullptr;
    sums.in += std::size_t(2) * blocks * op.channels;  // after those of dweight and dbias
    column_sums<SumsGeometry>(sums, stream);
}

template void layernorm_forward(const LayerNormForward<float>&, StreamRef);
template void layernorm_forward(const LayerNormForward<bf16>&, StreamRef);
template void residual_layernorm_forward(const ResidualLayerNormForward<float>&, StreamRef);
template void residual_layernorm_forward(const ResidualLayerNormForward<bf16>&, StreamRef);
template void layernorm_backward(const LayerNormBackward<float>&, StreamRef);
template void layernorm_backward(const LayerNormBackward<bf16>&, StreamRef);

}  // namespace kernels
