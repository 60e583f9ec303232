// text_tokens.h - token ids distributed as in text: a few very frequent, most of them rare; and random documents
//
// p(rank) ~ 1 / (rank + 2.15), ranks from 0 (Zipf-Mandelbrot). With GPT-2's 50257 ids the most frequent one is 4.5 % of
// the tokens, and the entropy is 8.00 nats; uniform ids have 10.82. (GPT-2's ids of English: the comma of 2 MB of the
// King James Bible is 6.3 %, the 15th id 0.8 %.) Ranks are spread over the ids by a permutation that is always the same
// for a size of vocabulary.
//
// The same ids everywhere: no library's distribution, whose numbers the C++ standard leaves open.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/device/random.h"

namespace operations {

inline constexpr int kGpt2Vocabulary = 50257;

class TextTokens {
public:
    explicit TextTokens(int vocabulary, std::uint64_t seed = 1)
        : bits_(seed), id_(std::size_t(vocabulary)), below_(std::size_t(vocabulary)) {
        constexpr double kOffset = 2.15;
        std::iota(id_.begin(), id_.end(), 0);
        kernels::SplitMix64 shuffle(0);
        for (std::uint64_t i = id_.size(); i > 1; --i) std::swap(id_[i - 1], id_[shuffle.next() % i]);
        double sum = 0;
        for (std::size_t rank = 0; rank < below_.size(); ++rank) below_[rank] = sum += 1 / (double(rank) + kOffset);
    }

    // Independent of the tokens before it.
    int next() { return of(bits_.next()); }

    // Half of the tokens follow from the one before, as each id has one favourite successor. For GPT-2's vocabulary a
    // model that knows these reaches 4.7 nats, one that knows only how frequent each id is, 7.2 (in 4 M tokens).
    int next_after(int token) {
        const bool follows = bits_.next() >> 63;
        return follows ? of(kernels::SplitMix64::mix(std::uint64_t(token) + 1)) : next();
    }

private:
    int of(std::uint64_t bits) const {
        const double at = double(bits >> 11) * 0x1p-53 * below_.back();
        return id_[std::size_t(std::upper_bound(below_.begin(), below_.end(), at) - below_.begin())];
    }

    kernels::SplitMix64 bits_;
    std::vector<int> id_;        // by rank
    std::vector<double> below_;  // sum of 1 / (rank + offset) up to and with each rank
};

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

}  // namespace operations
