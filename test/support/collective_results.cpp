// collective_results.cpp - collective_results.h
#include "test/support/collective_results.h"

#include <algorithm>
#include <cstring>

#include "test/operations/rounded.h"

namespace llmc {
namespace {

template <class T> void sum_shard(Bytes& out, const std::vector<Bytes>& inputs, ElementRange shard) {
    out.resize(shard.size * sizeof(T));
    for (std::int64_t i = 0; i < shard.size; ++i) {
        const auto of = [&](const Bytes& input) {
            return float(operations::widen(reinterpret_cast<const T*>(input.data())[shard.first + i]));
        };
        auto sum = of(inputs[0]);
        for (std::size_t rank = 1; rank < inputs.size(); ++rank) sum += of(inputs[rank]);
        reinterpret_cast<T*>(out.data())[i] = operations::narrow<T>(sum);
    }
}

}  // namespace

std::string name_of(const Collective& op) {
    constexpr const char* kNames[] = {"reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce"};
    return std::string(kNames[int(op.kind)]) + " of " + std::to_string(op.elements) + " elements of type " +
           std::to_string(int(op.element)) + ", root " + std::to_string(op.root);
}

std::int64_t in_bytes(const Collective& op, int rank, int ranks) {
    return bytes_of(op.element) *
           (op.kind == Collective::Kind::all_gather ? shard_of(op.elements, rank, ranks).size : op.elements);
}
std::int64_t out_bytes(const Collective& op, int rank, int ranks) {
    if (op.kind == Collective::Kind::broadcast && op.root == rank) return 0;
    if (op.kind == Collective::Kind::reduce && op.root != rank) return 0;
    return bytes_of(op.element) *
           (op.kind == Collective::Kind::reduce_scatter ? shard_of(op.elements, rank, ranks).size : op.elements);
}

std::vector<Bytes> results_of(const Collective& op, const std::vector<Bytes>& inputs) {
    const int ranks = int(inputs.size());
    std::vector<Bytes> results(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
        Bytes& out = results[rank];
        switch (op.kind) {
            case Collective::Kind::reduce:
            case Collective::Kind::reduce_scatter: {
                const bool scatters = op.kind == Collective::Kind::reduce_scatter;
                if (!scatters && rank != op.root) break;
                const ElementRange shard = scatters ? shard_of(op.elements, rank, ranks) : ElementRange{0, op.elements};
                if (op.element == ElementType::bf16) sum_shard<kernels::bf16>(out, inputs, shard);
                else sum_shard<float>(out, inputs, shard);
                break;
            }
            case Collective::Kind::all_gather:
                for (const Bytes& input : inputs) out.insert(out.end(), input.begin(), input.end());
                break;
            case Collective::Kind::all_to_all: {
                const std::int64_t part = std::int64_t(inputs[rank].size()) / ranks;
                for (const Bytes& input : inputs)
                    out.insert(out.end(), input.begin() + rank * part, input.begin() + (rank + 1) * part);
                break;
            }
            case Collective::Kind::broadcast:
                if (rank != op.root) out = inputs[op.root];
                break;
        }
    }
    return results;
}

void reduce_on_host(std::span<std::int64_t> values, const std::vector<std::string>& all, HostReduction reduction) {
    for (std::size_t i = 0; i < values.size(); ++i)
        for (std::size_t rank = 0; rank < all.size(); ++rank) {
            std::int64_t value;
            std::memcpy(&value, all[rank].data() + i * sizeof value, sizeof value);
            if (rank == 0) values[i] = value;
            else if (reduction == HostReduction::sum) values[i] += value;
            else values[i] = std::max(values[i], value);
        }
}

}  // namespace llmc
