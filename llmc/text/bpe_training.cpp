// bpe_training.cpp - counts of pairs with their places, and a heap of pairs
#include "llmc/text/bpe_training.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace llmc {
namespace {

using Pair = std::uint32_t;  // left id << 16 | right id

class BpeTraining {
public:
    explicit BpeTraining(const PieceCounts& pieces) {
        std::vector<std::pair<std::int64_t, std::string_view>> by_count;
        for (const auto& [piece, count] : pieces.counts())
            if (piece.size() > 1) by_count.emplace_back(count, piece);
        std::ranges::sort(by_count);
        for (const auto& [count, piece] : by_count) {
            if (weights_.empty() || weights_.back().count != count) weights_.push_back({ids_.size(), count});
            for (const char byte : piece) ids_.push_back(id_of_byte()[static_cast<unsigned char>(byte)]);
            ids_.push_back(kNone);
        }
        require(ids_.size() < std::numeric_limits<std::uint32_t>::max(), "bytes of pieces to train merges on",
                ids_.size(), "less than 4294967295", "break the text into lines");
        for (std::size_t i = 1; i + 1 < ids_.size(); ++i)
            if (ids_[i] != kNone && ids_[i + 1] != kNone) add(ids_[i], ids_[i + 1], weight(i), i);
    }

    BpeMerges run(std::size_t most, const std::function<void()>& progress) {
        BpeMerges result;
        for (push_grown(); result.merges.size() < most && !heap_.empty();) {
            progress();
            const auto [count, opposite] = heap_.top();
            heap_.pop();
            const Pair pair = ~opposite;
            const auto found = pairs_.find(pair);
            const BpeMerge merge{std::uint16_t(pair >> 16), std::uint16_t(pair)};
            const std::size_t length = lengths_[merge.left] + lengths_[merge.right];
            if (found->second.count < kLeast) {
                pairs_.erase(found);
            } else if (found->second.count < count) {  // other merges have taken places since
                heap_.emplace(found->second.count, opposite);
            } else if (length <= kLongest) {
                lengths_.push_back(length);
                apply(merge, std::uint16_t(256 + result.merges.size()), std::exchange(found->second.places, {}));
                result.merges.push_back(merge);
                pairs_.erase(pair);
                push_grown();
            }
        }
        return result;
    }

private:
    static constexpr std::uint16_t kNone = 0xffff;  // no id of a merge: the largest vocabulary has it as end of text
    static constexpr std::int64_t kLeast = 2;
    static constexpr std::size_t kLongest = 256;
    struct Weight {
        std::size_t from;
        std::int64_t count;
    };
    struct Places {
        std::int64_t count = 0;             // how often the pair occurs in the text
        std::vector<std::uint32_t> places;  // of left ids, ascending; some have changed since
    };

    // How often the piece at this place occurs in the text.
    std::int64_t weight(std::size_t place) const {
        return std::prev(std::ranges::upper_bound(weights_, place, {}, &Weight::from))->count;
    }
    Places& pair(int left, int right) { return pairs_[Pair(left) << 16 | Pair(right)]; }
    void add(int left, int right, std::int64_t count, std::size_t place) {
        Places& known = pair(left, right);
        if (known.places.empty()) grown_.push_back(Pair(left) << 16 | Pair(right));
        known.count += count;
        known.places.push_back(std::uint32_t(place));
    }
    void push_grown() {
        for (const Pair pair : grown_) heap_.emplace(pairs_[pair].count, ~pair);
        grown_.clear();
    }
    void apply(const BpeMerge& merge, std::uint16_t id, const std::vector<std::uint32_t>& places) {
        for (const std::size_t place : places) {
            const std::size_t second = place + lengths_[merge.left], end = second + lengths_[merge.right];
            if (ids_[place] != merge.left || ids_[second] != merge.right) continue;
            ids_[second - 1] = ids_[second] = kNone;
            ids_[place] = ids_[end - 1] = id;
            const std::int64_t count = weight(place);
            if (const std::uint16_t before = ids_[place - 1]; before != kNone) {
                pair(before, merge.left).count -= count;
                add(before, id, count, place - lengths_[before]);
            }
            if (const std::uint16_t after = ids_[end]; after != kNone) {
                pair(merge.right, after).count -= count;
                add(id, after, count, place);
            }
        }
    }

    // An element per byte of the different pieces, with kNone around each. An id of several bytes stands in the first
    // and in the last of them, with kNone between, so that the neighbours of a place are found from either side.
    std::vector<std::uint16_t> ids_{kNone};
    std::vector<std::size_t> lengths_ = std::vector<std::size_t>(256, 1);  // of ids, in bytes
    std::vector<Weight> weights_;  // pieces of equal counts are neighbours
    std::unordered_map<Pair, Places> pairs_;
    std::vector<Pair> grown_;  // not yet in the heap
    // The count that the pair had, at least its present one, and ~pair: of equal counts the lowest pair comes first.
    std::priority_queue<std::pair<std::int64_t, Pair>> heap_;
};

}  // namespace

void PieceCounts::add(std::string_view piece, std::int64_t count) {
    const auto [known, is_new] = counts_.try_emplace(piece, 0);
    known->second += count;
    if (is_new) bytes_ += piece.size();
}
void PieceCounts::add(std::string_view text, BpeMatcher& matcher) {
    matcher.split(text, [&](std::string_view piece) { add(piece, 1); });
}
void PieceCounts::add(const PieceCounts& others) {
    for (const auto& [piece, count] : others.counts_) add(piece, count);
}

BpeMerges train_merges(const PieceCounts& pieces, int most, const std::function<void()>& progress) {
    return BpeTraining(pieces).run(std::size_t(most), progress);
}

int ids_for_text(std::int64_t bytes) {
    if (bytes < 100'000) return 257;
    // With equal computation 2048 was best for 0.3 MB, 4096 for 1 to 30 MB: dev/results/2026-11-28-auto.md
    const double doublings = std::round(std::log2(4096) + 0.15 * std::log2(double(bytes) / 5e6));
    return 1 << std::clamp(int(doublings), 9, 15);
}

}  // namespace llmc
