// hellaswag_file.h - the examples of HellaSwag as token ids, in llm.c's evaluation file: a context with four endings,
// of which one is right
//
//   256 little-endian int32    [0] = 20240522   [1] = version 1   [2] = examples   [3] = bytes of the longest example
//                              [4] = vocabulary size   [5] = end-of-text id, as a shard's [3] and [4]
//   every example, in uint16   65535, its bytes (these two included), its index from 0 on, the number of the right
//                              ending, 4, length of the context, its ids, and of every ending its length and its ids
//
// Source    Zellers et al. 2019, arXiv 1905.07830; the file: karpathy/llm.c, which leaves the words from [4] on 0.
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
    // Reads all of it. Throws Error that names the file, and the example, where it is missing, unreadable, of another
    // format, inconsistent or has an id outside its vocabulary.
    explicit HellaSwagFile(const std::string& path);

    const std::string& path() const { return path_; }
    Vocabulary vocabulary() const { return vocabulary_; }
    std::string fingerprint() const;
    const std::vector<HellaSwagExample>& examples() const { return examples_; }  // at least 1; they refer to this file

private:
    std::string path_;
    Vocabulary vocabulary_;
    std::vector<std::uint16_t> words_;
    std::vector<HellaSwagExample> examples_;
};

}  // namespace llmc
