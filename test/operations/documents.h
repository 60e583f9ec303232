// documents.h - random documents in the rows of a micro-batch, for the operations that stay within them
#pragma once
#include <optional>
#include <random>
#include <vector>

#include "test/operations/operation.h"

namespace operations {

// s(t) of kernels/documents.h, with documents of this many tokens on average: some of one token, also at the ends of a
// row. 0: empty, rows are whole.
inline std::vector<int> random_starts(int batch, int seq_len, int document) {
    std::mt19937 engine(11);
    std::vector<int> starts;
    for (int row = 0; row < batch; ++row)
        for (int t = 0, start = 0; t < seq_len; ++t) {
            if (document > 0 && engine() % unsigned(document) == 0) start = t;
            starts.push_back(start);
        }
    return starts;
}

// A tensor that an operation has only with documents.
inline std::span<const int> if_any(const std::optional<Tensor<int>>& tensor) {
    return tensor ? tensor->span() : std::span<int>();
}

}  // namespace operations
