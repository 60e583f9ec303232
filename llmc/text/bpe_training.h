// bpe_training.h - learns the merges of a byte-level BPE from the pieces of a text (bpe_split.h)
//
// Repeatedly merges the most frequent pair of neighbours within pieces (of equal ones the pair of lower ids) to a new
// id. A piece counts as often as it occurs. Merges equal those of Hugging Face's BpeTrainer with min_frequency 2.
//
// Cost      proportional to the bytes of all different pieces, up to 20 bytes of memory for each: the places of every
//           pair are known, and a merge visits only its own. 125 MB of source code, 32768 ids: 13 s for all of
//           dev/tokenize, on two busy cores
// Source    Sennrich et al. 2016, arXiv 1508.07909
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>

#include "llmc/text/bpe_merges.h"
#include "llmc/text/bpe_split.h"

namespace llmc {

// How often each piece occurs. Pieces are views into the texts.
class PieceCounts {
public:
    void add(std::string_view text, BpeMatcher& matcher);
    void add(const PieceCounts& others);
    const std::unordered_map<std::string_view, std::int64_t>& counts() const { return counts_; }
    std::size_t bytes() const { return bytes_; }  // of the different pieces

private:
    void add(std::string_view piece, std::int64_t count);
    std::unordered_map<std::string_view, std::int64_t> counts_;
    std::size_t bytes_ = 0;
};

// Fewer than `most` merges if no further pair occurs twice or is of at most 256 bytes, the longest token. Calls
// `progress` before every merge.
BpeMerges train_merges(const PieceCounts& pieces, int most, const std::function<void()>& progress = [] {});

// A good number of ids, with the end of text, of a BPE for `bytes` of text: a power of two, 4096 for 1 to 50 MB, twice
// as many for 100 times the text. 257: bytes.
int ids_for_text(std::int64_t bytes);

}  // namespace llmc
