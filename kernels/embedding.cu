// embedding.cu - forward: adds a row of each table, `Lanes` threads per row; backward: sums over the rows of a token
//
// Backward: a block per list of rows of a token (and per slice of channels) sums these rows, and one per frequent token
// then the sums of its lists; so for positions within documents; otherwise a block per position sums over the batch.
#include "kernels/embedding.h"

#include <algorithm>
#include <climits>

#include "kernels/base/error.h"
#include "kernels/pack.cuh"
#include "kernels/row_sum.cuh"

namespace kernels {
namespace {

// `Lanes` threads per row: a warp on a GPU, one thread on a CPU.
template <class T, int Lanes, int PackBytes>
__global__ void embedding_forward_kernel(EmbeddingForward<T> op, int rows_per_block) {
    using Pack = kernels::Pack<T, PackBytes>;
    const int lane = threadIdx.x % Lanes, packs = op.channels / Pack::size;
    const int rows = op.batch * op.seq_len, first_row = blockIdx.x * rows_per_block;
    const int end_row = std::min(first_row + rows_per_block, rows);
    for (int row = first_row + int(threadIdx.x) / Lanes; row < end_row; row += blockDim.x / Lanes) {
        const T* token_row = &op.token_table[std::size_t(op.tokens[row]) * op.channels];
        const int position = row % op.seq_len - (op.starts.empty() ? 0 : op.starts[row]);
        const T* position_row = &op.position_table[std::size_t(position) * op.channels];
        T* out_row = &op.out[std::size_t(row) * op.channels];
        for (int i = lane; i < packs; i += Lanes) {
            const auto& token = load<PackBytes>(token_row + i * Pack::size);
            const auto& position = load<PackBytes>(position_row + i * Pack::size);
            Pack out;
            for (int k = 0; k < Pack::size; ++k) out[k] = round_to<T>(to_float(token[k]) + to_float(position[k]));
            store(out_row + i * Pack::size, out);
        }
    }
}

// The gradient of one of the tables: row `token` += the rows of that token.
template <class T>
struct TableGradient {
    std::span<float> table, scratch;
    std::span<const T> dout;
    RowsByToken<std::span<const int>> sorted;
    int channels;
};

// Block number = number of the list in `sorted` * slices + slice. The sums of chunks go to `scratch`.
template <class Geometry, class T>
__global__ void table_gradient_kernel(TableGradient<T> op, int slices) {
    const int i = blockIdx.x / slices, start = op.sorted.start[i];
    const int* rows = &op.sorted.row[start];
    const bool chunk = i < op.sorted.chunks;
    float* const out = chunk ? &op.scratch[std::size_t(i) * op.channels]
                             : &op.table[std::size_t(op.sorted.token[i]) * op.channels];
    block_row_sum<Geometry>(out, op.dout.data(), op.channels, slice_of<Geometry, T>(op.channels, blockIdx.x % slices),
                            op.sorted.start[i + 1] - start, [rows](int k) { return rows[k]; }, !chunk);
}

// Block number = number of the chunk * slices + slice; only the first chunk of a token has work.
template <class Geometry, class T>
__global__ void chunks_kernel(TableGradient<T> op, int slices) {
    const std::span<const int> token = op.sorted.token;
    const int i = blockIdx.x / slices;
    if (i > 0 && token[i - 1] == token[i]) return;  // uniform over the block
    int end = i + 1;
    while (end < op.sorted.chunks && token[end] == token[i]) ++end;
    block_row_sum<Geometry>(&op.table[std::size_t(token[i]) * op.channels], op.scratch.data(), op.channels,
                            slice_of<Geometry, float>(op.channels, blockIdx.x % slices), end - i,
                            [i](int k) { return i + k; }, true);
}

// Block number = position * slices + slice. With seq_len 0 the gradient becomes 0.
template <class Geometry, class T>
__global__ void position_gradient_kernel(EmbeddingBackward<T> op, int slices) {
    const int position = blockIdx.x / slices, seq_len = op.seq_len;
    block_row_sum<Geometry>(&op.dposition_table[std::size_t(position) * op.channels], op.dout.data(), op.channels,
                            slice_of<Geometry, T>(op.channels, blockIdx.x % slices),
                            position < seq_len ? op.batch : 0, [=](int i) { return i * seq_len + position; },
                            op.accumulate_positions);
}

// A list has four rows on average with GPT-2's vocabulary, at most 64; frequent tokens have few chunks. Not measured.
using RowsGeometry = RowSumGeometry<kWarp, 4, kGpuPackBytes>;
using ChunksGeometry = RowSumGeometry<kWarp, 8, kGpuPackBytes>;

template <class T>
void check_shape(int batch, int seq_len, int channels) {
    require(batch > 0, "the batch of an embedding", batch, "at least 1");
    require(seq_len > 0, "the sequence length of an embedding", seq_len, "at least 1");
    require_multiple("channels of an embedding", channels, 16 / sizeof(T));
}

template <class T>
void add_to_table(const TableGradient<T>& op, std::size_t rows, StreamRef stream) {
    const std::size_t lists = op.sorted.token.size();
    require(op.sorted.start.size() == lists + 1, "the number of starts of sorted rows", op.sorted.start.size(),
            "the number of lists + 1");
    require(op.sorted.row.size() == rows, "the number of sorted rows", op.sorted.row.size(), "batch * seq_len");
    require(lists > 0, "the number of lists of sorted rows", lists, "at least 1");
    require_size("the gradient of an embedding's table", op.table,
                 std::max<std::size_t>(lists - op.sorted.chunks, 1) * op.channels, "tokens that occur * channels");

    with_row_sum_geometry<T, RowsGeometry>(op.channels, [&]<class Geometry>() {
        const int slices = count_slices<Geometry, T>(op.channels);
        simt::launch<table_gradient_kernel<Geometry, T>>(
            {.grid = unsigned(lists) * slices, .block = Geometry::threads, .stream = stream}, op, slices);
    });
    if (op.sorted.chunks > 0) with_row_sum_geometry<float, ChunksGeometry>(op.channels, [&]<class Geometry>() {
        const int slices = count_slices<Geometry, float>(op.channels);
        simt::launch<chunks_kernel<Geometry, T>>({.grid = unsigned(op.sorted.chunks) * slices,
                                                  .block = Geometry::threads, .stream = stream}, op, slices);
    });
}

}  // namespace

// Eight warps per block on a GPU: not measured yet. 16 rows per block on a CPU, as in LayerNorm.
template <class T>
void embedding_forward(const EmbeddingForward<T>& op, StreamRef stream) {
    check_shape<T>(op.batch, op.seq_len, op.channels);
    const std::size_t rows = std::size_t(op.batch) * op.seq_len;
    require_size("tokens", op.tokens, rows, "batch * seq_len");
    require_size("the embedding's output", op.out, rows * op.channels, "batch * seq_len * channels");
    require_size("the position table", op.position_table, std::size_t(op.seq_len) * op.channels, "seq_len * channels",
                 "choose a shorter --seq-len");
    require_size("the token table", op.token_table, op.channels, "channels");
    if (!op.starts.empty()) require_size("the starts of documents", op.starts, rows, "batch * seq_len");

    with_row_packs<T>(op.channels, [&]<int Lanes, int PackBytes>() {
        constexpr int kRows = Lanes > 1 ? 8 : 16, kThreads = Lanes > 1 ? Lanes * kRows : 1;
        simt::launch<embedding_forward_kernel<T, Lanes, PackBytes>>(
            {.grid = unsigned(ceil_div(rows, kRows)), .block = kThreads, .stream = stream}, op, kRows);
    });
}

int rows_per_chunk() { return simt::gpu_geometry ? 64 : INT_MAX; }

// A token with more rows than a chunk has at most two chunks for that many.
std::size_t embedding_backward_scratch(std::size_t rows, int channels) {
    return 2 * rows / std::size_t(rows_per_chunk()) * std::size_t(channels);
}

template <class T>
void embedding_backward(const EmbeddingBackward<T>& op, StreamRef stream) {
    check_shape<T>(op.batch, op.seq_len, op.channels);
    const std::size_t rows = std::size_t(op.batch) * op.seq_len;
    require(op.seq_len <= op.max_seq_len, "the sequence length of an embedding", op.seq_len, "at most max_seq_len",
            "choose a shorter --seq-len");
    require_size("the embedding's dout", op.dout, rows * op.channels, "batch * seq_len * channels");
    require_size("an embedding's scratch", op.scratch, embedding_backward_scratch(rows, op.channels),
                 "embedding_backward_scratch(rows, channels)");
    require_size("the position table's gradient", op.dposition_table, std::size_t(op.max_seq_len) * op.channels,
                 "max_seq_len * channels");

    add_to_table<T>({op.dtoken_table, op.scratch, op.dout, op.sorted, op.channels}, rows, stream);
    const bool documents = !op.by_position.row.empty();
    EmbeddingBackward<T> whole_rows = op;
    if (documents) whole_rows.seq_len = 0;
    // positions from seq_len on get no gradient, so they need no block when accumulating
    const int positions = op.accumulate_positions ? whole_rows.seq_len : op.max_seq_len;
    if (positions > 0) with_row_sum_geometry<T, RowsGeometry>(op.channels, [&]<class Geometry>() {
        const int slices = count_slices<Geometry, T>(op.channels);
        simt::launch<position_gradient_kernel<Geometry, T>>(
            {.grid = unsigned(positions) * slices, .block = Geometry::threads, .stream = stream}, whole_rows, slices);
    });
    if (documents)
        add_to_table<T>({op.dposition_table, op.scratch, op.dout, op.by_position, op.channels}, rows, stream);
}

template void embedding_forward(const EmbeddingForward<float>&, StreamRef);
template void embedding_forward(const EmbeddingForward<bf16>&, StreamRef);
template void embedding_backward(const EmbeddingBackward<float>&, StreamRef);
template void embedding_backward(const EmbeddingBackward<bf16>&, StreamRef);

}  // namespace kernels
