// shard.cpp - checks a shard's header, its length, and every id that is read
#include "llmc/data/shard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"

namespace llmc {
namespace {

static_assert(std::endian::native == std::endian::little,
              "shards are little-endian and are read without conversion");

// llm.c files that are passed as shards by mistake.
constexpr std::array<std::pair<std::int32_t, const char*>, 3> kNotShards{{
    {20240326, "this is a model of llm.c: start from it with --init"},
    {20240522, "this is a HellaSwag file: pass it to --hellaswag"},
    {20240801, "this is a token shard of Llama 3: create one with GPT-2's tokens with dev/tokenize"},
}};

std::uint16_t largest(std::span<const std::uint16_t> ids) {
    std::uint16_t largest = 0;
    for (const std::uint16_t id : ids) largest = std::max(largest, id);
    return largest;
}

constexpr int kVocabularyWord = 3;  // word of the header

}  // namespace

std::string describe(const Vocabulary& vocabulary) {
    return std::to_string(vocabulary.size) + " ids, end of text " + std::to_string(vocabulary.end_of_text) +
           (vocabulary.merges != 0 ? format(", merges %08x", unsigned(vocabulary.merges)) : "");
}

Vocabulary vocabulary_of_header(std::span<const std::int32_t> words, int first_word, const std::string& file) {
    const std::int32_t size = words[0], end_of_text = words[1];
    if (size == 0 && end_of_text == 0) return {};
    const auto word = [&](int i) { return std::to_string(first_word + i); };
    require(size >= 1 && size <= kLargestVocabulary, file + "vocabulary size (header word " + word(0) + ")", size,
            "1 to 65536, or 0 in words " + word(0) + " and " + word(1) + " for GPT-2's", "create the file again");
    require(end_of_text >= 0 && end_of_text < size, file + "end-of-text id (header word " + word(1) + ")", end_of_text,
            "0 to " + std::to_string(size - 1) + " with its vocabulary of " + std::to_string(size),
            "create the file again");
    return {size, end_of_text, words[2]};
}

Shard::Shard(std::string path) : file_(std::move(path), "shard") {
    const std::string file = "shard " + file_.path() + ": ";
    const auto size = std::int64_t(file_.size());
    require(size > 0, "shard " + file_.path(), "empty", "a header of 1024 bytes and token ids",
            "create it again with dev/tokenize");
    require(size >= kShardHeaderBytes, file + "size in bytes", size, "at least the 1024 of the header",
            "it is truncated or not a shard: copy or create it again");

    std::array<std::int32_t, kShardHeaderWords> header;
    file_.read(0, std::as_writable_bytes(std::span(header)));
    const auto [magic, version, tokens] = std::array{header[0], header[1], header[2]};
    const auto other = std::ranges::find(kNotShards, magic, &std::pair<std::int32_t, const char*>::first);
    require(magic == kShardMagic, file + "magic number", magic, std::to_string(kShardMagic),
            other != kNotShards.end() ? other->second
                                       : "it is not a token shard: pass only shards, or create one with dev/tokenize");
    require(version == kShardVersion, file + "version", version, std::to_string(kShardVersion),
            "create it again with dev/tokenize");
    require(tokens > 0, file + "token count in the header", tokens, "at least 1", "create it again with dev/tokenize");

    const std::int64_t expected = kShardHeaderBytes + 2 * std::int64_t(tokens);
    require(size == expected, file + "size in bytes", size,
            std::to_string(expected) + " for the " + counted(tokens, "token") + " of its header",
            size < expected ? "it is truncated: copy or create it again" : "it is too long: copy or create it again");

    vocabulary_ = vocabulary_of_header(std::span(header).subspan(kVocabularyWord), kVocabularyWord, file);
    tokens_ = tokens;
}

std::vector<std::uint16_t> Shard::read(std::int64_t first, std::int64_t count) const {
    if (first < 0 || count < 0 || first > tokens_ || count > tokens_ - first)
        fail("shard " + path() + ": a read", std::to_string(count) + " tokens from offset " + std::to_string(first),
             "a range within its " + std::to_string(tokens_));
    std::vector<std::uint16_t> ids(static_cast<std::size_t>(count));
    file_.read(std::uint64_t(kShardHeaderBytes + 2 * first), std::as_writable_bytes(std::span(ids)), Blame::runtime);
    if (largest(ids) >= vocabulary_.size) {
        const auto bad = std::find_if(ids.begin(), ids.end(), [&](std::uint16_t id) { return id >= vocabulary_.size; });
        fail("shard " + path() + ": id of token " + std::to_string(first + (bad - ids.begin())), *bad,
             "less than its vocabulary of " + std::to_string(vocabulary_.size),
             "the file is damaged or belongs to another vocabulary: create it again", Blame::runtime);
    }
    return ids;
}

}  // namespace llmc
