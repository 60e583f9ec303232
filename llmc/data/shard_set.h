// shard_set.h - the shards of a data set, pattern after pattern, in the byte order of their names
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/data/shard.h"

namespace llmc {

// The shards of one pattern.
struct Corpus {
    std::string pattern;
    std::int64_t weight = 0;  // a whole number, without a common factor; 0: read one after another (data_mix.h)
    std::int64_t shards = 0;
};

class ShardSet {
public:
    // A pattern may end with a weight, a number with at most six digits after the point: "books_*.bin:0.3".
    // All files that match shell patterns (*, ?, [...], {a,b}, ~), in the order of the patterns; those of one pattern
    // sorted by the bytes of the names, independent of the locale. Throws Error if a pattern matches nothing, or
    // shards of a set that is being written, two patterns match the same file, a shard is invalid, two shards have
    // different vocabularies, or only some patterns have a weight.
    explicit ShardSet(const std::vector<std::string>& patterns);
    explicit ShardSet(const std::string& pattern) : ShardSet(std::vector{pattern}) {}

    static std::string unmatched(const std::vector<std::string>& patterns);  // the first without a file; "": none

    const std::vector<Corpus>& corpora() const { return corpora_; }  // in the order of the patterns
    bool is_weighted() const { return corpora_.front().weight > 0; }
    const std::vector<Shard>& shards() const { return shards_; }  // at least one
    const Shard& operator[](std::int64_t i) const { return shards_[std::size_t(i)]; }
    std::int64_t size() const { return std::int64_t(shards_.size()); }
    std::int64_t tokens() const;  // of all shards together
    Vocabulary vocabulary() const { return shards_.front().vocabulary(); }

private:
    std::vector<Corpus> corpora_;
    std::vector<Shard> shards_;
};

}  // namespace llmc
