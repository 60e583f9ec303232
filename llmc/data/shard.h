// shard.h - a file of token ids in llm.c's format
//
//   256 little-endian int32    [0] = 20240520   [1] = version 1   [2] = number of tokens
//                              [3] = vocabulary size   [4] = end-of-text id   [5] = merges
//   uint16 per token           so the file has exactly 1024 + 2 * tokens bytes
//
// Source    karpathy/llm.c, which leaves words [3] and above unused: 0 in [3] and [4] means GPT-2's 50257 and 50256.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/input_file.h"

namespace llmc {

inline constexpr std::int32_t kShardMagic = 20240520, kShardVersion = 1;
inline constexpr int kShardHeaderWords = 256;
inline constexpr std::int64_t kShardHeaderBytes = 4 * kShardHeaderWords;
inline constexpr int kLargestVocabulary = 65536;  // the number of uint16 values
inline constexpr std::string_view kTemporaryShard = ".bin.partial-";  // in the name of a shard that is being written

// "a_train" of a_train_000000.bin and of its temporary name: what the names of the shards of a set have in common.
inline std::string series_of(const std::string& name) {
    return name.substr(0, name.rfind('_', name.find(kTemporaryShard)));
}

struct Vocabulary {
    int size = 50257, end_of_text = 50256;
    std::int32_t merges = 0;  // identifies those of a BPE (BpeMerges::vocabulary()); 0: bytes, GPT-2's, or not known
    bool operator==(const Vocabulary&) const = default;
};

// "257 ids, end of text 256", "4096 ids, end of text 4095, merges 5d2f01a9"
std::string describe(const Vocabulary& vocabulary);

// The vocabulary in three words of a header, starting at its word `first_word`; the first two 0: GPT-2's. Throws Error
// that starts with `file` for an invalid vocabulary.
Vocabulary vocabulary_of_header(std::span<const std::int32_t> words, int first_word, const std::string& file);

// Several threads may read concurrently.
class Shard {
public:
    // Throws Error that names the file if it is missing, unreadable, of another format, or its length does not match
    // its header.
    explicit Shard(std::string path);

    const std::string& path() const { return file_.path(); }
    std::int64_t tokens() const { return tokens_; }  // at least 1
    Vocabulary vocabulary() const { return vocabulary_; }

    // Token ids [first, first + count), all less than the vocabulary size. Throws a run-time Error that names file,
    // offset, id and vocabulary otherwise, or as InputFile::read(). Results are not cached. A read is one system call:
    // batches without prefetch, pinned to a core of an EPYC (Zen 5), 16 x 1024: 5.2 G tokens/s sequential, 1.2 G
    // shuffled; 4 x 64 shuffled: 0.11 G.
    std::vector<std::uint16_t> read(std::int64_t first, std::int64_t count) const;

private:
    InputFile file_;
    std::int64_t tokens_ = 0;
    Vocabulary vocabulary_;
};

}  // namespace llmc
