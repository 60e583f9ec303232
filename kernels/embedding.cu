// embedding.cu - forward: adds a row of each table, `Lanes` threads per row; backward: sums over the rows of a token
//
// Backward: a block per token that occurs (and per slice of channels) sums the rows of that token; a block per position
// sums over the batch.
#include "kernels/embedding.h"

#include <algorithm>

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
        const T* position_row = &op.position_table[std::size_t(row % op.seq_len) * op.channels];
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

// Block number = number of the token in `sorted` * slices + slice.
template <class Geometry, class T>
__global__ void token_gradient_kernel(EmbeddingBackward<T> op, int slices) {
    const int i = blockIdx.x / slices, start = op.sorted.start[i];
    const int* rows = &op.sorted.row[start];
    block_row_sum<Geometry>(
        &op.dtoken_table[std::size_t(op.sorted.token[i]) * op.channels], op.dout.data(), op.channels,
        slice_of<Geometry, T>(op.channels, blockIdx.x % slices), op.sorted.start[i + 1] - start,
        [rows](int k) { return rows[k]; }, true);
}

// Block number = position * slices + slice.
template <class Geometry, class T>
__global__ void position_gradient_kernel(EmbeddingBackward<T> op, int slices) {
    const int position = blockIdx.x / slices, seq_len = op.seq_len;
    block_row_sum<Geometry>(&op.dposition_table[std::size_t(position) * op.channels], op.dout.data(), op.channels,
                            slice_of<Geometry, T>(op.channels, blockIdx.x % slices),
                            position < seq_len ? op.batch : 0, [=](int i) { return i * seq_len + position; },
                            op.accumulate_positions);
}

// Many tokens with few rows each (GPT-2's vocabulary: four on average) use small blocks. A few tokens with many rows
// (bytes: every sixth letter is a space) need many rows in flight, and slices of one cache line, so that even one token
// keeps several SMs busy. Neither is measured yet.
using FewRows = RowSumGeometry<kWarp, 4, kGpuPackBytes>;
using ManyRows = RowSumGeometry<8, 64, kGpuPackBytes>;
constexpr std::size_t kManyRows = 32;  // on average

template <class T>
void check_shape(int batch, int seq_len, int channels) {
    require(batch > 0, "the batch of an embedding", batch, "at least 1");
    require(seq_len > 0, "the sequence length of an embedding", seq_len, "at least 1");
    require(channels > 0 && channels % (16 / sizeof(T)) == 0, "channels of an embedding", channels,
            "a multiple of " + std::to_string(16 / sizeof(T)) + " (16 bytes)");
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

    with_row_packs<T>(op.channels, [&]<int Lanes, int PackBytes>() {
        constexpr int kRows = Lanes > 1 ? 8 : 16, kThreads = Lanes > 1 ? Lanes * kRows : 1;
        simt::launch<embedding_forward_kernel<T, Lanes, PackBytes>>(
            {.grid = unsigned(ceil_div(rows, kRows)), .block = kThreads, .stream = stream}, op, kRows);
    });
}

template <class T>
void embedding_backward(const EmbeddingBackward<T>& op, StreamRef stream) {
    check_shape<T>(op.batch, op.seq_len, op.channels);
    const std::size_t rows = std::size_t(op.batch) * op.seq_len, occurring = op.sorted.token.size();
    require(op.seq_len <= op.max_seq_len, "the sequence length of an embedding", op.seq_len, "at most max_seq_len",
            "choose a shorter --seq-len");
    require_size("the embedding's dout", op.dout, rows * op.channels, "batch * seq_len * channels");
    require(op.sorted.start.size() == occurring + 1, "the number of starts of sorted rows", op.sorted.start.size(),
            "the number of tokens that occur + 1");
    require(op.sorted.row.size() == rows, "the number of sorted rows", op.sorted.row.size(), "batch * seq_len");
    require(occurring > 0, "the number of tokens that occur", occurring, "at least 1");
    require_size("the token table's gradient", op.dtoken_table, occurring * op.channels,
                 "tokens that occur * channels");
    require_size("the position table's gradient", op.dposition_table, std::size_t(op.max_seq_len) * op.channels,
                 "max_seq_len * channels");

    const auto token_gradient = [&]<class Geometry>() {
        const int slices = count_slices<Geometry, T>(op.channels);
        simt::launch<token_gradient_kernel<Geometry, T>>(
            {.grid = unsigned(occurring) * slices, .block = Geometry::threads, .stream = stream}, op, slices);
    };
    if (rows < kManyRows * occurring) with_row_sum_geometry<T, FewRows>(op.channels, token_gradient);
    else with_row_sum_geometry<T, ManyRows>(op.channels, token_gradient);
    with_row_sum_geometry<T, FewRows>(op.channels, [&]<class Geometry>() {
        const int slices = count_slices<Geometry, T>(op.channels);
        // positions from seq_len on get no gradient, so they need no block when accumulating
        const unsigned positions = op.accumulate_positions ? op.seq_len : op.max_seq_len;
        simt::launch<position_gradient_kernel<Geometry, T>>(
            {.grid = positions * slices, .block = Geometry::threads, .stream = stream}, op, slices);
    });
}

template void embedding_forward(const EmbeddingForward<float>&, StreamRef);
template void embedding_forward(const EmbeddingForward<bf16>&, StreamRef);
template void embedding_backward(const EmbeddingBackward<float>&, StreamRef);
template void embedding_backward(const EmbeddingBackward<bf16>&, StreamRef);

}  // namespace kernels
