// tokenizer.cpp - the byte tokenizer, the tokenizer without a table, and escaping of text for terminals
#include "llmc/text/tokenizer.h"

#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"
#include "llmc/base/utf8.h"
#include "llmc/text/bpe_tokenizer.h"

namespace llmc {
namespace {

class ByteTokenizer final : public Tokenizer {
public:
    Vocabulary vocabulary() const override { return kByteVocabulary; }

    void append(std::string_view text, std::vector<std::uint16_t>& ids) const override {
        for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    }

    std::size_t certain_prefix(std::string_view text) const override { return text.size(); }
    std::string text_of(int id) const override { return {char(id)}; }
};

// For a vocabulary whose table is not available: decodes ids to numbers.
class IdTokenizer final : public Tokenizer {
public:
    explicit IdTokenizer(Vocabulary vocabulary) : vocabulary_(vocabulary) {}
    Vocabulary vocabulary() const override { return vocabulary_; }
    bool has_table() const override { return false; }

    void append(std::string_view, std::vector<std::uint16_t>&) const override {
        fail("the vocabulary to encode text with",
             counted(vocabulary_.size, "id") + " with end of text " + std::to_string(vocabulary_.end_of_text),
             "257 with end of text 256 (bytes), or GPT-2's 50257 with 50256 and its merges",
             vocabulary_ == kGpt2Vocabulary ? "run scripts/get_gpt2_tokenizer.sh, which gets them"
                                            : "pass token ids, or train on shards of dev/tokenize");
    }

    std::size_t certain_prefix(std::string_view) const override { return 0; }
    std::string text_of(int id) const override { return std::to_string(id); }

private:
    Vocabulary vocabulary_;
};

// U+0000 to U+001F, U+007F, and U+0080 to U+009F (two bytes in UTF-8), which some terminals interpret too.
bool is_control(std::string_view character) {
    const auto first = static_cast<unsigned char>(character[0]);
    if (character.size() == 1) return (first < 0x20 || first == 0x7f) && first != '\n' && first != '\t';
    return character.size() == 2 && first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

constexpr std::size_t kLongestCharacter = 4;

// The number of bytes at the end that are an incomplete character, according to their lead byte. A lead byte always
// starts a character, so the bytes before it do not depend on it.
std::size_t unfinished(std::string_view text) {
    for (std::size_t length = 1; length < kLongestCharacter && length <= text.size(); ++length) {
        const auto byte = static_cast<unsigned char>(text[text.size() - length]);
        if ((byte & 0xc0) == 0x80) continue;  // a continuation byte
        const std::size_t whole = byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : byte < 0xf8 ? 4 : 1;
        return length < whole ? length : 0;
    }
    return 0;
}

}  // namespace

std::vector<int> Tokenizer::encode(std::string_view text) const {
    std::vector<std::uint16_t> ids;
    append(text, ids);
    return {ids.begin(), ids.end()};
}

std::vector<std::uint16_t> Tokenizer::token_bytes() const {
    const auto [size, end_of_text, merges] = vocabulary();
    std::vector<std::uint16_t> bytes;
    for (int id = 0; has_table() && id < size; ++id)
        bytes.push_back(id == end_of_text ? 0 : std::uint16_t(text_of(id).size()));
    return bytes;
}

std::string Tokenizer::decode(std::span<const int> ids) const {
    const auto [size, end_of_text, merges] = vocabulary();
    std::string text;
    for (const int id : ids) {
        require(id >= 0 && id < size, "token id to decode", id, "0 to " + std::to_string(size - 1));
        if (!has_table() && !text.empty()) text += ' ';
        if (has_table() && id == end_of_text) text += kEndOfTextLine;
        else text += text_of(id);
    }
    return text;
}

std::unique_ptr<Tokenizer> tokenizer_for(Vocabulary vocabulary, const std::filesystem::path& gpt2_merges) {
    if (vocabulary == kByteVocabulary) return std::make_unique<ByteTokenizer>();
    if (vocabulary == kGpt2Vocabulary && !gpt2_merges.empty())
        return std::make_unique<BpeTokenizer>(read_gpt2_merges(gpt2_merges));
    return std::make_unique<IdTokenizer>(vocabulary);
}

std::unique_ptr<Tokenizer> tokenizer_for(Vocabulary vocabulary) {
    return tokenizer_for(vocabulary, vocabulary == kGpt2Vocabulary ? find_gpt2_merges() : "");
}

std::string printable(std::string_view text) {
    constexpr char digits[] = "0123456789abcdef";
    std::string shown;
    while (!text.empty()) {
        const std::size_t length = character_length(text);
        const std::string_view character = text.substr(0, length ? length : 1);
        if (length && !is_control(character)) {
            shown += character;
        } else {
            for (const char raw : character) {
                const auto byte = static_cast<unsigned char>(raw);
                shown += {'\\', 'x', digits[byte / 16], digits[byte % 16]};
            }
        }
        text.remove_prefix(character.size());
    }
    return shown;
}

std::string TextStream::add(std::string_view bytes) {
    held_ += bytes;
    const std::size_t shown = held_.size() - unfinished(held_);
    std::string text = printable(std::string_view(held_).substr(0, shown));
    held_.erase(0, shown);
    return text;
}

std::string TextStream::finish() { return printable(std::exchange(held_, {})); }

}  // namespace llmc
