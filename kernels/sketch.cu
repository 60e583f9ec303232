// sketch.cu - signs from a hash of the index, and sums over the indices of a column in a fixed order
//
// The values form rows of kSketchColumns. The first pass sums runs of rows into `scratch`, the second sums the runs
// into the sketch.
#include "kernels/sketch.h"

#include "kernels/base/error.h"
#include "kernels/simt/simt.h"

namespace kernels {
namespace {

// 64 blocks of 256 columns times 32 runs give a GPU 2048 blocks (not measured); their sums take 2 MB, written and read
// once.
constexpr int kRuns = 32;
constexpr int kSketchThreads = simt::gpu_geometry ? 256 : 1;
// neighbouring columns per thread: one on a GPU, for coalesced loads; a few registers' worth on a CPU
constexpr int kColumns = simt::gpu_geometry ? 1 : 64;
constexpr int kBlocksPerRun = ceil_div(kSketchColumns, kSketchThreads * kColumns);

__device__ __forceinline__ std::uint32_t mix(std::uint32_t x) {
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

__device__ __forceinline__ int first_column() {
    return (blockIdx.x % kBlocksPerRun * kSketchThreads + threadIdx.x) * kColumns;
}

// A GPU thread sums one column over the rows of a run. It issues the loads of kRowsAtOnce rows before it uses the
// first: 8 loads of 4 bytes per thread hide the memory latency (a model, dev/LOG.md, 2026-11-25).
[[maybe_unused]] __device__ __forceinline__ float column_sum(const Sketch& op, std::int64_t row, std::int64_t end_row,
                                                             int column) {
    constexpr int kRowsAtOnce = 8;
    const auto add = [](float sum, float value, std::uint32_t hash) {
        return sum + __uint_as_float(__float_as_uint(value) ^ (hash & 0x80000000u));
    };
    float sum = 0.0f;
    if (row >= end_row) return sum;
    int left = int(end_row - row);
    std::uint32_t key = mix(op.draw) + std::uint32_t(row);
    const float* value = &op.values[row * kSketchColumns + column];
    for (; left >= kRowsAtOnce; left -= kRowsAtOnce, key += kRowsAtOnce, value += kRowsAtOnce * kSketchColumns) {
        float values[kRowsAtOnce];
        for (int j = 0; j < kRowsAtOnce; ++j) values[j] = value[j * kSketchColumns];
        for (int j = 0; j < kRowsAtOnce; ++j) sum = add(sum, values[j], mix(mix(key + j) + std::uint32_t(column)));
    }
    for (; left > 0; --left, ++key, value += kSketchColumns)
        sum = add(sum, *value, mix(mix(key) + std::uint32_t(column)));
    return sum;
}

// Rows are not aligned (the number of columns is prime), so lanes load single elements, neighbouring lanes from
// neighbouring addresses.
__global__ void __launch_bounds__(kSketchThreads) sketch_runs_kernel(Sketch op, std::int64_t rows_per_run) {
    const std::int64_t size = op.values.size(), run = blockIdx.x / kBlocksPerRun;
    const int first = first_column();
    if (first >= kSketchColumns) return;
    if constexpr (kColumns == 1) {
        const std::int64_t rows = ceil_div(size - first, kSketchColumns);  // that contain this column
        const std::int64_t end = (run + 1) * rows_per_run;
        op.scratch[run * kSketchColumns + first] = column_sum(op, run * rows_per_run, end < rows ? end : rows, first);
        return;
    }
    const int columns = kSketchColumns - first < kColumns ? kSketchColumns - first : kColumns;
    float sum[kColumns] = {};
    for (std::int64_t row = run * rows_per_run; row < (run + 1) * rows_per_run; ++row) {
        const std::int64_t begin = row * kSketchColumns + first;
        if (begin >= size) break;
        const int count = size - begin < columns ? int(size - begin) : columns;
        const std::uint32_t key = mix(mix(op.draw) + std::uint32_t(row)) + std::uint32_t(first);
        const float* const values = &op.values[begin];
        const auto add = [&](int column) {
            sum[column] += mix(key + std::uint32_t(column)) >> 31 ? -values[column] : values[column];
        };
        if (count == kColumns)
            for (int column = 0; column < kColumns; ++column) add(column);  // constant trip count: vectorises
        else
            for (int column = 0; column < count; ++column) add(column);
    }
    for (int column = 0; column < columns; ++column) op.scratch[run * kSketchColumns + first + column] = sum[column];
}

__global__ void __launch_bounds__(kSketchThreads) sketch_sum_kernel(Sketch op) {
    for (int column = first_column(), i = 0; i < kColumns && column < kSketchColumns; ++i, ++column) {
        float sum = 0.0f;
        for (int run = 0; run < kRuns; ++run) sum += op.scratch[std::size_t(run) * kSketchColumns + column];
        op.sketch[column] = sum * op.scale;
    }
}

}  // namespace

std::size_t sketch_scratch() { return std::size_t(kRuns) * kSketchColumns; }

void sketch(const Sketch& op, StreamRef stream) {
    require_size("a sketch", op.sketch, kSketchColumns);
    require_size("a sketch's scratch", op.scratch, sketch_scratch(), "sketch_scratch()");
    const std::int64_t rows = ceil_div(std::int64_t(op.values.size()), kSketchColumns);
    simt::launch<sketch_runs_kernel>({.grid = kBlocksPerRun * kRuns, .block = kSketchThreads,
                                      .stream = stream}, op, ceil_div(rows, kRuns));
    simt::launch<sketch_sum_kernel>({.grid = kBlocksPerRun, .block = kSketchThreads, .stream = stream}, op);
}

}  // namespace kernels
