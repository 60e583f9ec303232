// block_matrices.cpp - the table of matrices, and their division among ranks
#include "llmc/model/block_matrices.h"

namespace llmc {

std::vector<BlockMatrix> block_matrices(const ParameterTable& table, int ranks) {
    std::vector<BlockMatrix> matrices;
    const auto add = [&](int tensor, int parts) {
        const ParameterSpec& spec = table.tensors()[std::size_t(tensor)];
        for (int part = 0; part < parts; ++part)
            matrices.push_back({.first = spec.offset + part * spec.size() / parts, .rows = int(spec.rows) / parts,
                                .columns = int(spec.columns), .owner = 0});
    };
    for (int layer = 0; layer < table.config().layers; ++layer) {
        const BlockParameters& block = table.block(layer);
        for (const Linear& linear : block.linears()) add(linear.weight, linear.weight == block.qkv.weight ? 3 : 1);
    }
    std::vector<BlockMatrix*> by_cost;
    for (BlockMatrix& matrix : matrices) by_cost.push_back(&matrix);
    std::ranges::stable_sort(by_cost, [](auto* a, auto* b) { return a->cost() > b->cost(); });
    std::vector<double> work(std::size_t(ranks), 0);
    for (BlockMatrix* const matrix : by_cost) {
        const auto least = std::ranges::min_element(work);
        *least += matrix->cost();
        matrix->owner = int(least - work.begin());
    }
    return matrices;
}

}  // namespace llmc
