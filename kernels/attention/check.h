// check.h - the input checks of all implementations of attention.h
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/base/error.h"

namespace kernels {

template <class T, template <class> class Op>
void check_attention(const Op<T>& op) {
    const AttentionShape& shape = op.shape;
    require(shape.batch > 0, "attention's batch", shape.batch, "at least 1");
    require(shape.seq_len > 0, "attention's seq_len", shape.seq_len, "at least 1");
    require(shape.heads > 0, "attention's heads", shape.heads, "at least 1");
    require(shape.head_size > 0 && shape.head_size <= 256 && shape.head_size % int(16 / sizeof(T)) == 0,
            "attention's head_size", shape.head_size,
            sizeof(T) == 2 ? "a multiple of 8, at most 256" : "a multiple of 4, at most 256",
            "choose another number of heads");
    const std::size_t rows = shape.rows(), elements = shape.elements();
    require_size("attention's qkv", op.qkv, 3 * elements, "batch * seq_len * 3 * heads * head_size");
    require_size("attention's out", op.out, elements, "batch * seq_len * heads * head_size");
    require_size("attention's logsumexp", op.logsumexp, rows, "batch * heads * seq_len");
    require(op.starts.empty() || shape.documents, "the starts of documents", op.starts.size(), "none in whole rows");
    if (!op.starts.empty())
        require_size("attention's starts", op.starts, std::size_t(shape.batch) * shape.seq_len, "batch * seq_len");
    if constexpr (requires { op.dqkv; }) {
        require_size("attention's dqkv", op.dqkv, 3 * elements, "batch * seq_len * 3 * heads * head_size");
        require_size("attention's dout", op.dout, elements, "batch * seq_len * heads * head_size");
        require_size("attention's delta", op.delta, rows, "batch * heads * seq_len");
    }
}

// The number of blocks of a launch with one block per tile of each sequence.
inline unsigned attention_blocks(std::size_t tiles, std::size_t sequences) {
    const std::size_t count = tiles * sequences;
    require(count <= 0x7fffffff, "the number of attention's blocks", count, "at most 2147483647",
            "use a smaller --micro-batch");
    return unsigned(count);
}

}  // namespace kernels
