// bpe_encoder.h - applies BPE merges to a piece of text: repeatedly merges the pair of neighbours with the lowest merge
// index (ties: the leftmost), until no pair can be merged
//
// A short piece is an array that is searched for the lowest index after each merge. A long one is a linked list with a
// heap of its pairs: O(n log n) for any piece.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "llmc/text/bpe_merges.h"

namespace llmc {

// Immutable after construction; several threads may use it, each with its own Memory.
class BpeEncoder {
public:
    // Working memory of one thread, reused between calls.
    struct Memory {
        struct Part {
            std::uint32_t before, after;
            int id;
        };
        std::vector<Part> parts;
        std::vector<std::uint64_t> heap;
    };

    explicit BpeEncoder(const BpeMerges& merges);
    // Appends the ids of the piece.
    void encode(std::string_view piece, Memory& memory, std::vector<std::uint16_t>& ids) const;

private:
    static constexpr std::size_t kShort = 64;  // bytes
    static constexpr int kNone = 1 << 16;      // greater than any id
    // The id that merging the two ids gives; kNone if no merge joins them. A lower id is a merge of lower index.
    int merged(int left, int right) const {
        const std::uint32_t pair = std::uint32_t(left) << 16 | std::uint32_t(right);
        for (std::size_t slot = slot_of(pair);; slot = (slot + 1) & mask_) {
            if (slots_[slot].pair == pair) return slots_[slot].id;
            if (slots_[slot].id == kNone) return kNone;
        }
    }
    std::size_t slot_of(std::uint32_t pair) const { return (pair * 0x9e3779b1u >> 8) & mask_; }
    void encode_short(std::string_view piece, std::vector<std::uint16_t>& ids) const;
    void encode_long(std::string_view piece, Memory& memory, std::vector<std::uint16_t>& ids) const;

    struct Slot {
        std::uint32_t pair = ~std::uint32_t(0);
        int id = kNone;
    };
    std::vector<Slot> slots_;  // a hash table with open addressing, at most half full
    std::size_t mask_ = 0;
};

}  // namespace llmc
