// bpe_encoder.cpp - BPE merging by linear search for short pieces, by a heap for long ones
#include "llmc/text/bpe_encoder.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "kernels/base/error.h"

namespace llmc {

BpeEncoder::BpeEncoder(const BpeMerges& merges) {
    slots_.resize(std::bit_ceil(2 * merges.merges.size() + 1));
    mask_ = slots_.size() - 1;
    for (std::size_t i = 0; i < merges.merges.size(); ++i) {
        const std::uint32_t pair = std::uint32_t(merges.merges[i].left) << 16 | merges.merges[i].right;
        std::size_t slot = slot_of(pair);
        while (slots_[slot].id != kNone && slots_[slot].pair != pair) slot = (slot + 1) & mask_;
        if (slots_[slot].id == kNone) slots_[slot] = {pair, int(256 + i)};
    }
}

void BpeEncoder::encode(std::string_view piece, Memory& memory, std::vector<std::uint16_t>& ids) const {
    if (piece.size() <= kShort) encode_short(piece, ids);
    else encode_long(piece, memory, ids);
}

void BpeEncoder::encode_short(std::string_view piece, std::vector<std::uint16_t>& ids) const {
    int parts[kShort], joined[kShort];  // joined[i]: the merge of parts[i] and parts[i + 1]
    std::size_t count = piece.size();
    for (std::size_t i = 0; i < count; ++i) parts[i] = id_of_byte()[static_cast<unsigned char>(piece[i])];
    for (std::size_t i = 0; i + 1 < count; ++i) joined[i] = merged(parts[i], parts[i + 1]);
    while (count > 1) {
        const std::size_t at = std::size_t(std::min_element(joined, joined + count - 1) - joined);
        if (joined[at] == kNone) break;
        parts[at] = joined[at];
        --count;
        for (std::size_t i = at + 1; i < count; ++i) parts[i] = parts[i + 1];
        for (std::size_t i = at; i + 1 < count; ++i) joined[i] = joined[i + 1];
        if (at + 1 < count) joined[at] = merged(parts[at], parts[at + 1]);
        if (at > 0) joined[at - 1] = merged(parts[at - 1], parts[at]);
    }
    ids.insert(ids.end(), parts, parts + count);
}

void BpeEncoder::encode_long(std::string_view piece, Memory& memory, std::vector<std::uint16_t>& ids) const {
    // A heap entry is the id of the merge and the index of its left part. Entries of parts that have changed since are
    // detected and skipped when they are popped.
    require(piece.size() < std::size_t(1) << 31, "the length of a run of one kind of character, in bytes", piece.size(),
            "less than 2147483648", "break the text into lines");
    const auto end = std::uint32_t(piece.size());
    auto& parts = memory.parts;
    auto& heap = memory.heap;
    parts.resize(piece.size());
    heap.clear();
    const auto join = [&](std::uint32_t left) {
        const std::uint32_t right = parts[left].after;
        const int id = right == end ? kNone : merged(parts[left].id, parts[right].id);
        return id == kNone ? ~std::uint64_t(0) : std::uint64_t(id) << 32 | left;
    };
    for (std::uint32_t i = 0; i < end; ++i)
        parts[i] = {i - 1, i + 1, id_of_byte()[static_cast<unsigned char>(piece[i])]};
    for (std::uint32_t i = 0; i < end; ++i)
        if (const std::uint64_t pair = join(i); ~pair) heap.push_back(pair);
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
    const auto push = [&](std::uint32_t left) {
        const std::uint64_t pair = join(left);
        if (!~pair) return;
        heap.push_back(pair);
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
    };
    constexpr int kGone = -1;
    while (!heap.empty()) {
        const std::uint64_t pair = heap.front();
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        heap.pop_back();
        const auto left = std::uint32_t(pair);
        if (parts[left].id == kGone || join(left) != pair) continue;
        const std::uint32_t right = parts[left].after;
        parts[left].id = int(pair >> 32);
        parts[left].after = parts[right].after;
        parts[right].id = kGone;
        if (parts[left].after != end) parts[parts[left].after].before = left;
        push(left);
        if (left > 0) push(parts[left].before);
    }
    for (std::uint32_t i = 0; i != end; i = parts[i].after) ids.push_back(std::uint16_t(parts[i].id));
    constexpr std::size_t kMaxCached = 1 << 20;  // the memory of larger pieces, which are rare, is freed
    if (parts.size() > kMaxCached) memory = {};
}

}  // namespace llmc
