// hellaswag_file.cpp - parses the file and checks every number in it
#include "llmc/data/hellaswag_file.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "llmc/base/fingerprint.h"
#include "llmc/base/input_file.h"

namespace llmc {
namespace {

constexpr int kHellaSwagVocabularyWord = 4;  // word of the header
constexpr std::uint16_t kExampleBegins = 65535;
constexpr const char* kFixExamples = "create or copy the file again";

// Reads the words of one example in order.
class ExampleWords {
public:
    ExampleWords(std::span<const std::uint16_t> words, std::string where) : words_(words), where_(std::move(where)) {}

    std::uint16_t number(const char* what) {
        require(!words_.empty(), where_ + what, "missing", "more of the example", kFixExamples);
        const std::uint16_t word = words_.front();
        words_ = words_.subspan(1);
        return word;
    }
    void expect(const char* what, std::size_t expected) {
        const std::size_t found = number(what);
        require(found == expected, where_ + what, found, std::to_string(expected), kFixExamples);
    }
    std::span<const std::uint16_t> ids(const char* what, int vocabulary) {
        const std::size_t size = number(what);
        require(size >= 1 && size <= words_.size(), where_ + what, size,
                "at least 1, and not more than the " + std::to_string(words_.size()) + " words left of the example",
                kFixExamples);
        const auto ids = words_.first(size);
        const std::uint16_t largest = *std::ranges::max_element(ids);
        require(largest < vocabulary, where_ + "a token id", largest, "0 to " + std::to_string(vocabulary - 1),
                kFixExamples);
        words_ = words_.subspan(size);
        return ids;
    }
    void expect_end() const {
        require(words_.empty(), where_ + "the words after its last ending", words_.size(), "none", kFixExamples);
    }

private:
    std::span<const std::uint16_t> words_;
    std::string where_;
};

}  // namespace

HellaSwagFile::HellaSwagFile(const std::string& path) : path_(path) {
    const InputFile file(path, "HellaSwag file");
    const std::string name = "HellaSwag file " + path + ": ";
    require(file.size() >= std::uint64_t(kShardHeaderBytes) && file.size() % 2 == 0, name + "size in bytes",
            file.size(), "an even number, at least the 1024 of the header",
            "the file is truncated or not a HellaSwag file");
    std::array<std::int32_t, kShardHeaderWords> header;
    file.read(0, std::as_writable_bytes(std::span(header)));
    words_.resize((file.size() - sizeof header) / 2);
    file.read(sizeof header, std::as_writable_bytes(std::span(words_)));

    const auto [magic, version, count, longest] = std::array{header[0], header[1], header[2], header[3]};
    require(magic == kHellaSwagMagic, name + "magic number", magic, std::to_string(kHellaSwagMagic),
            magic == kShardMagic ? "it is a token shard: pass it to -i or -j" : "it is not a HellaSwag file");
    require(version == kHellaSwagVersion, name + "version", version, std::to_string(kHellaSwagVersion), kFixExamples);
    require(count >= 1, name + "number of examples in the header", count, "at least 1", kFixExamples);
    vocabulary_ = vocabulary_of_header(std::span(header).subspan(kHellaSwagVocabularyWord), kHellaSwagVocabularyWord,
                                       name);

    std::span<const std::uint16_t> left(words_);
    std::size_t most = 0;
    for (std::int32_t i = 0; i < count; ++i) {
        const std::string where = name + "example " + std::to_string(i) + ": ";
        require(left.size() >= 2, where + "its words", left.size(), "at least 2", "it is truncated: " +
                std::string(kFixExamples));
        const std::size_t example_bytes = left[1];
        require(example_bytes % 2 == 0 && example_bytes / 2 <= left.size() && example_bytes >= 4,
                where + "its length in bytes", example_bytes,
                "an even number, 4 to the " + std::to_string(2 * left.size()) + " that are left", kFixExamples);
        ExampleWords words(left.first(example_bytes / 2), where);
        words.expect("its first word", kExampleBegins);
        words.number("its length");
        words.expect("its index", std::size_t(std::uint16_t(i)));
        HellaSwagExample example;
        example.right = words.number("the right ending");
        require(example.right < 4, where + "the right ending", example.right, "0 to 3", kFixExamples);
        words.expect("the number of endings", 4);
        example.context = words.ids("the length of its context", vocabulary_.size);
        for (auto& ending : example.endings) ending = words.ids("the length of an ending", vocabulary_.size);
        words.expect_end();
        examples_.push_back(example);
        most = std::max(most, example_bytes);
        left = left.subspan(example_bytes / 2);
    }
    require(left.empty(), name + "bytes after the last example", 2 * left.size(), "none", kFixExamples);
    require(std::size_t(longest) == most, name + "bytes of the longest example in the header", longest,
            std::to_string(most), kFixExamples);
}

std::string HellaSwagFile::fingerprint() const { return llmc::fingerprint(std::as_bytes(std::span(words_))); }

}  // namespace llmc
