// chunks.h - device collectives as rounds of chunks, for messages of bounded size between pairs of ranks
//
// Plain host code.
#pragma once
#include <algorithm>
#include <vector>

#include "llmc/comm/communicator.h"

namespace llmc {

// Part of a collective that one rank owns: in sums the owner's `out` becomes the sum of all ranks' `in`, in copies the
// owner's `in` becomes `out` of every rank.
struct Chunk {
    ElementType element;
    std::byte *in, *out;
    std::int64_t bytes;
};

// In a round every owner has at most one chunk.
class Chunks {
public:
    Chunks(int ranks, std::int64_t chunk_bytes) : ranks_(ranks), chunk_bytes_(chunk_bytes), of_(std::size_t(ranks)) {}

    // Of every owner: its shard, or the whole array of the root.
    void add(const Collective& op) {
        const bool gathers = op.kind == Collective::Kind::all_gather,
                   scatters = op.kind == Collective::Kind::reduce_scatter;
        for (int owner = 0; owner < ranks_; ++owner) {
            const ElementRange range = gathers || scatters ? shard_of(op.elements, owner, ranks_)
                                     : owner == op.root  ? ElementRange{.first = 0, .size = op.elements}
                                                         : ElementRange{};
            const std::int64_t width = bytes_of(op.element), first = range.first * width, bytes = range.size * width;
            std::byte* const in = const_cast<std::byte*>(op.in) + (gathers ? 0 : first);
            for (std::int64_t offset = 0; offset < bytes; offset += chunk_bytes_)
                of_[std::size_t(owner)].push_back({.element = op.element,
                                                   .in = in + offset,
                                                   .out = op.out + (scatters ? 0 : first) + offset,
                                                   .bytes = std::min(chunk_bytes_, bytes - offset)});
        }
    }

    std::size_t rounds() const { return std::ranges::max_element(of_, {}, &std::vector<Chunk>::size)->size(); }
    // nullptr: the owner has none in this round.
    const Chunk* of(int owner, std::size_t round) const {
        const std::vector<Chunk>& chunks = of_[std::size_t(owner)];
        return round < chunks.size() ? &chunks[round] : nullptr;
    }

private:
    int ranks_;
    std::int64_t chunk_bytes_;
    std::vector<std::vector<Chunk>> of_;  // by owner
};

}  // namespace llmc
