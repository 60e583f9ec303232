// hellaswag_file.h - reads llm.c's evaluation file of HellaSwag: examples as token ids, each a context with four
// endings, one of them correct
//
//   256 little-endian int32    [0] = 20240522   [1] = version 1   [2] = examples   [3] = bytes of the longest example
//                              [4] = vocabulary size   [5] = end-of-text id, like [3] and [4] of a shard
//   per example, in uint16     65535, its bytes (including these two words), its index from 0, the number of the
//                              correct ending, 4, the length of the context, its ids, and for each ending its length
//                              and ids
//
// Source    Zellers et al. 2019, arXiv 1905.07830; the format: karpathy/llm.c, where words [4] and above are 0.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "llmc/data/shard.h"

namespace llmc {

inline constexpr std::int32_t kHellaSwagMagic = 20240522, kHellaSwagVersion = 1;

struct HellaSwagExample {
    std::span<const std::uint16_t> context;
    std::array<std::span<const std::uint16_t>, 4> endings;
    int right = 0;
};

class HellaSwagFile {
public:
    HellaSwagFile(HellaSwagFile&&) = default;
    HellaSwagFile& operator=(HellaSwagFile&&) = default;
    // Reads the whole file. Throws Error that names the file and the example if the file is missing, unreadable, of
    // another format or inconsistent, or has an id outside its vocabulary.
    explicit HellaSwagFile(const std::string& path);

    const std::string& path() const { return path_; }
    Vocabulary vocabulary() const { return vocabulary_; }
    std::string fingerprint() const;
    const std::vector<HellaSwagExample>& examples() const { return examples_; }  // at least 1; views into this object

private:
    std::string path_;
    Vocabulary vocabulary_;
    std::vector<std::uint16_t> words_;
    std::vector<HellaSwagExample> examples_;
};

}  // namespace llmc
