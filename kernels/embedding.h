// embedding.h - token plus position embedding, and its gradient
//
//   out[b, t, :] = token_table[tokens[b, t], :] + position_table[p, :],  p = t, or t - starts[b, t] within documents
//   dtoken_table[v, :] += sum over rows (b, t) with tokens[b, t] == v of dout[b, t, :]
//   dposition_table[p, :] (+)= sum over rows with position p of dout[b, t, :];   without such rows 0, or unchanged
//
// Shapes    out, dout: (batch, seq_len, channels) T; tokens, starts: (batch, seq_len) int; tables: (vocabulary,
//           channels) and (max_seq_len, channels).
// Numerics  sums in float, in an order fixed by the row numbers: the backward pass is deterministic and uses no
//           atomics. On a GPU it sums the rows of a frequent token in chunks, one block each, and then the chunks.
// Traffic   forward 2-3 * rows * channels * sizeof(T) bytes, backward 2 * rows * channels * sizeof(T) plus the table
//           rows that occur, and 8 bytes per channel and chunk.
// Source    Radford et al. 2019 (GPT-2).
#pragma once
#include <vector>

#include "kernels/device/types.h"

namespace kernels {

template <class T>
struct EmbeddingForward {
    std::span<T> out;
    std::span<const int> tokens;
    std::span<const T> token_table, position_table;
    int batch, seq_len, channels;
    std::span<const int> starts{};  // of documents.h; empty: rows are whole
};

// Enqueues on `stream`. The caller guarantees 0 <= token < vocabulary (the data loader checks every id).
// Throws Error if channels is not a multiple of 16 / sizeof(T) or a span is too short.
template <class T>
void embedding_forward(const EmbeddingForward<T>& op, StreamRef stream);

// The rows of one micro-batch sorted by token: list i has the rows row[start[i]] .. row[start[i + 1] - 1], ascending,
// of token[i]. A token with more than rows_per_chunk() rows is frequent: it has one list for each chunk of that many
// rows. The `chunks` lists of frequent tokens come first, then one list for each other token that occurs; both in
// ascending order of tokens.
template <class Ints>
struct RowsByToken {
    Ints token, start, row;  // n, n + 1 and rows long
    int chunks = 0;
};
int rows_per_chunk();  // of the current device; on a CPU no token has more
// Plain host code; the arrays are copied to the device with the tokens.
RowsByToken<std::vector<int>> rows_by_token(std::span<const int> tokens, int vocabulary);

template <class T>
struct EmbeddingBackward {
    std::span<float> dtoken_table, dposition_table;
    std::span<float> scratch;  // embedding_backward_scratch(batch * seq_len, channels) floats
    std::span<const T> dout;
    RowsByToken<std::span<const int>> sorted;
    int batch, seq_len, channels, max_seq_len;
    // false: overwrite dposition_table. dtoken_table is always accumulated into: the head writes it first
    bool accumulate_positions;
    RowsByToken<std::span<const int>> by_position{};  // within documents: with positions as tokens; empty: p = t
};

std::size_t embedding_backward_scratch(std::size_t rows, int channels);  // floats, for the current device

// Enqueues on `stream`; both gradients are ready when the stream has passed this point. Throws like embedding_forward.
template <class T>
void embedding_backward(const EmbeddingBackward<T>& op, StreamRef stream);

}  // namespace kernels
