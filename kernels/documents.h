// documents.h - where the documents that are packed into the rows of a micro-batch begin
//
//   s(t) = the largest j <= t of a row with tokens[j] == end_of_text, which starts a document, or 0 if there is none
//
// Position t attends to s(t) .. t, and its position embedding is that of t - s(t). A row that begins within a document
// counts that one from 0.
#pragma once
#include <span>
#include <vector>

namespace kernels {

// s of every position, row after row. Plain host code, as rows_by_token(), which sorts the positions t - s(t).
inline std::vector<int> document_starts(std::span<const int> tokens, int seq_len, int end_of_text) {
    std::vector<int> starts(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const int position = int(i % std::size_t(seq_len));
        starts[i] = tokens[i] == end_of_text ? position : position == 0 ? 0 : starts[i - 1];
    }
    return starts;
}

}  // namespace kernels
