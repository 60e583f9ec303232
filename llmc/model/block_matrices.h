// block_matrices.h - the weight matrices of the blocks, for an optimizer that updates matrices as a whole, and the rank
// that owns each
//
// A block has six: query, key and value, which one tensor contains, the attention's projection, and the two of the MLP.
//
// Plain host code.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "llmc/weights/parameters.h"

namespace llmc {

struct BlockMatrix {
    std::int64_t first;  // in the flat array of parameters
    int rows, columns;   // row-major
    int owner;           // a rank

    std::int64_t size() const { return std::int64_t(rows) * columns; }
    // The multiplications of a step of Newton-Schulz (kernels/matmul/newton_schulz.h).
    double cost() const {
        const double a = std::min(rows, columns), b = std::max(rows, columns);
        return a * a * (2 * b + a);
    }
};

// In the order of the flat array. The owners depend only on the arguments: the largest matrix first, each goes to the
// rank with the least work so far. As the channels are a multiple of 8, every matrix starts at a multiple of 64
// elements, as collectives and kernels need.
std::vector<BlockMatrix> block_matrices(const ParameterTable& table, int ranks);

}  // namespace llmc
