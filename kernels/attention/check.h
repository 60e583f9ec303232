// check.h - the input checks of all implementations of attention.h
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/base/error.h"

namespace kernels {

template <class T, template <class> class Op>
void check_attention_common(const Op<T>& op) {
    require(op.batch > 0, "attention's batch", op.batch, "at least 1");
    require(op.seq_len > 0, "attention's seq_len", op.seq_len, "at least 1");
    require(op.heads > 0, "attention's heads", op.heads, "at least 1");
    require(op.head_size > 0 && op.head_size <= 256 && op.head_size % int(16 / sizeof(T)) == 0, "attention's head_size",
            op.head_size, sizeof(T) == 2 ? "a multiple of 8, at most 256" : "a multiple of 4, at most 256",
            "choose another number of heads");
    const std::size_t rows = std::size_t(op.batch) * op.heads * op.seq_len, elements = rows * op.head_size;
    require_size("attention's qkv", op.qkv, 3 * elements, "batch * seq_len * 3 * heads * head_size");
    require_size("attention's out", op.out, elements, "batch * seq_len * heads * head_size");
    require_size("attention's logsumexp", op.logsumexp, rows, "batch * heads * seq_len");
}

template <class T>
void check_attention(const AttentionForward<T>& op) { check_attention_common<T>(op); }

template <class T>
void check_attention(const AttentionBackward<T>& op) {
    check_attention_common<T>(op);
    const std::size_t rows = std::size_t(op.batch) * op.heads * op.seq_len, elements = rows * op.head_size;
    require_size("attention's dqkv", op.dqkv, 3 * elements, "batch * seq_len * 3 * heads * head_size");
    require_size("attention's dout", op.dout, elements, "batch * seq_len * heads * head_size");
    require_size("attention's delta", op.delta, rows, "batch * heads * seq_len");
}

// The number of blocks of a launch with one block per tile of each sequence.
inline unsigned attention_blocks(std::size_t tiles, std::size_t sequences) {
    const std::size_t count = tiles * sequences;
    require(count <= 0x7fffffff, "the number of attention's blocks", count, "at most 2147483647",
            "use a smaller --micro-batch");
    return unsigned(count);
}

}  // namespace kernels
