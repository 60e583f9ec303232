// bias_gradient.cu - column sums in two passes, or in one if there are few rows
//
// The first pass sums chunks of rows into `scratch`, the second sums the chunks into dbias.
#include "kernels/bias_gradient.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/row_sum.cuh"

namespace kernels {
namespace {

// Enough chunks to fill a GPU (128 x 3 slices of 768 channels: three blocks per multiprocessor), few enough that
// reading their sums costs little.
constexpr int kMaxChunks = 128, kMinRowsPerChunk = 64;

}  // namespace

std::size_t bias_gradient_scratch(int channels) { return std::size_t(kMaxChunks) * channels; }

template <class T>
void bias_gradient(const BiasGradient<T>& op, StreamRef stream) {
    require(op.rows > 0, "rows of a bias gradient", op.rows, "at least 1");
    require(op.channels > 0 && op.channels % (16 / sizeof(T)) == 0, "channels of a bias gradient", op.channels,
            "elements of a multiple of 16 bytes");
    require_size("dout", op.dout, std::size_t(op.rows) * op.channels, "rows * channels");
    require_size("dbias", op.dbias, op.channels, "channels");
    require_size("a bias gradient's scratch", op.scratch, bias_gradient_scratch(op.channels),
                 "bias_gradient_scratch(channels)");

    const int rows_per_chunk = std::max(ceil_div(op.rows, kMaxChunks), kMinRowsPerChunk);
    const int chunks = ceil_div(op.rows, rows_per_chunk);
    const bool one = chunks == 1;
    column_sums(ColumnSums<T>{one ? op.dbias.data() : op.scratch.data(), op.dout.data(), op.rows, op.channels,
                              rows_per_chunk, one && op.accumulate}, stream);
    if (one) return;
    column_sums(ColumnSums<float>{op.dbias.data(), op.scratch.data(), chunks, op.channels, chunks, op.accumulate},
                stream);
}

template void bias_gradient(const BiasGradient<float>&, StreamRef);
template void bias_gradient(const BiasGradient<bf16>&, StreamRef);

}  // namespace kernels
