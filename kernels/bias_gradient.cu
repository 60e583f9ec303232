// bias_gradient.cu - column sums in two passes, or in one if there are few rows
//
// The first pass sums chunks of rows into `scratch`, the second sums the chunks into dbias. With queries, keys and
// values the second pass also computes the gradients of the keys' and values' biases.
#include "kernels/bias_gradient.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/row_sum.cuh"

namespace kernels {
namespace {

// Enough chunks to fill a GPU (128 x 3 slices of 768 channels: three blocks per multiprocessor), few enough that
// reading their sums costs little.
constexpr int kMaxChunks = 128, kMinRowsPerChunk = 64;

// `parts`: of dbias and of a row of `dout`, each of op.channels
template <class T, class Op>
void check_bias_gradient(const Op& op, std::span<const T> dout, std::size_t parts) {
    require(op.rows > 0, "rows of a bias gradient", op.rows, "at least 1");
    require_multiple("channels of a bias gradient", op.channels, 16 / sizeof(T));
    const std::size_t biases = parts * op.channels;
    require_size("dout", dout, op.rows * biases, parts == 1 ? "rows * channels" : "rows * 3 * channels");
    require_size("dbias", op.dbias, biases, parts == 1 ? "channels" : "3 * channels");
    require_size("a bias gradient's scratch", op.scratch, bias_gradient_scratch(op.channels),
                 "bias_gradient_scratch(channels)");
}

// Sums chunks of rows of a matrix whose rows begin every `pitch` elements; returns their number.
template <class T>
int sum_chunks(std::span<float> scratch, const T* in, int rows, int channels, int pitch, StreamRef stream) {
    const int rows_per_chunk = std::max(ceil_div(rows, kMaxChunks), kMinRowsPerChunk);
    column_sums(ColumnSums<T>{scratch.data(), in, rows, channels, rows_per_chunk, false, nullptr, pitch}, stream);
    return ceil_div(rows, rows_per_chunk);
}

// blockIdx.y = 0: the queries', from the sums of the chunks; 1: the keys' and the values'.
template <class Geometry, class FloatGeometry, class T>
__global__ void qkv_bias_kernel(QkvBiasGradient<T> op, int chunks) {
    const int channels = op.channels;
    float* const dbias = op.dbias.data();
    const auto row = [](int i) { return i; };
    if (blockIdx.y == 0) {
        block_row_sum<FloatGeometry>(dbias, op.scratch.data(), channels,
                                     slice_of<FloatGeometry, float>(channels, blockIdx.x), chunks, row, op.accumulate);
        return;
    }
    constexpr int kSize = Geometry::pack_bytes / sizeof(T);
    const Slice slice = slice_of<Geometry, T>(channels, blockIdx.x);
    for (int c = slice.first * kSize + threadIdx.x; c < slice.end * kSize; c += Geometry::threads)
        dbias[channels + c] = 0.0f;
    block_row_sum<Geometry>(dbias + 2 * channels, op.proj_weight.data(), channels, slice, channels, row, false,
                            [weight = op.dproj_bias.data()](int i) { return weight[i]; });
}

}  // namespace

std::size_t bias_gradient_scratch(int channels) { return std::size_t(kMaxChunks) * channels; }

template <class T>
void bias_gradient(const BiasGradient<T>& op, StreamRef stream) {
    check_bias_gradient<T>(op, op.dout, 1);
    if (op.rows <= kMinRowsPerChunk) {
        column_sums(ColumnSums<T>{op.dbias.data(), op.dout.data(), op.rows, op.channels, op.rows, op.accumulate},
                    stream);
        return;
    }
    const int chunks = sum_chunks(op.scratch, op.dout.data(), op.rows, op.channels, op.channels, stream);
    column_sums(ColumnSums<float>{op.dbias.data(), op.scratch.data(), chunks, op.channels, chunks, op.accumulate},
                stream);
}

template <class T>
void qkv_bias_gradient(const QkvBiasGradient<T>& op, StreamRef stream) {
    check_bias_gradient<T>(op, op.dqkv, 3);
    const std::size_t channels = op.channels;
    require_size("the gradient of the projection's bias", op.dproj_bias, channels, "channels");
    require_size("the projection's weight", op.proj_weight, channels * channels, "channels * channels");

    const int chunks = sum_chunks(op.scratch, op.dqkv.data(), op.rows, op.channels, 3 * op.channels, stream);
    using Gpu = RowSumGeometry<8, 32, kGpuPackBytes>;  // C / 32 and C / 64 blocks of few rows per thread
    with_row_sum_geometry<T, Gpu>(op.channels, [&]<class Geometry>() {
        with_row_sum_geometry<float, Gpu>(op.channels, [&]<class FloatGeometry>() {
            const int slices = std::max(count_slices<Geometry, T>(op.channels),
                                        count_slices<FloatGeometry, float>(op.channels));
            simt::launch<qkv_bias_kernel<Geometry, FloatGeometry, T>>(
                {.grid = {unsigned(slices), 2u}, .block = Geometry::threads, .stream = stream}, op, chunks);
        });
    });
}

template void bias_gradient(const BiasGradient<float>&, StreamRef);
template void bias_gradient(const BiasGradient<bf16>&, StreamRef);
template void qkv_bias_gradient(const QkvBiasGradient<float>&, StreamRef);
template void qkv_bias_gradient(const QkvBiasGradient<bf16>&, StreamRef);

}  // namespace kernels
