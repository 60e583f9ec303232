// tokenizer.cpp - the tokenizer of bytes, the one that shows ids, and text made safe for terminals
#include "llmc/data/tokenizer.h"

#include <cstdint>

#include "kernels/device/error.h"

namespace llmc {
namespace {

void check_id(int id, Vocabulary vocabulary) {
    require(id >= 0 && id < vocabulary.size, "token id to decode", id, "0 to " + std::to_string(vocabulary.size - 1));
}

class ByteTokenizer final : public Tokenizer {
public:
    Vocabulary vocabulary() const override { return kByteVocabulary; }

    std::vector<int> encode(std::string_view text) const override {
        std::vector<int> ids;
        ids.reserve(text.size());
        for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
        return ids;
    }

    std::string decode(std::span<const int> ids) const override {
        std::string text;
        for (const int id : ids) {
            check_id(id, kByteVocabulary);
            if (id == kByteVocabulary.end_of_text) text += "\n<|endoftext|>\n";
            else text += char(id);
        }
        return text;
    }
};

// Stands for a vocabulary whose table is not at hand: shows what can be shown without one.
class IdTokenizer final : public Tokenizer {
public:
    explicit IdTokenizer(Vocabulary vocabulary) : vocabulary_(vocabulary) {}
    Vocabulary vocabulary() const override { return vocabulary_; }

    std::vector<int> encode(std::string_view) const override {
        fail("the vocabulary to encode text with",
             std::to_string(vocabulary_.size) + " ids with end of text " + std::to_string(vocabulary_.end_of_text),
             "257 with end of text 256 (bytes), the only one whose table is built in",
             "give token ids, or train on shards written by dev/tokenize");
    }

    std::string decode(std::span<const int> ids) const override {
        std::string text;
        for (const int id : ids) {
            check_id(id, vocabulary_);
            if (!text.empty()) text += ' ';
            text += std::to_string(id);
        }
        return text;
    }

private:
    Vocabulary vocabulary_;
};

// Bytes of the UTF-8 character that `text` begins with; 0 where it begins with none. Overlong forms, surrogates and
// what lies past U+10FFFF are none.
std::size_t character_length(std::string_view text) {
    const auto byte = [&](std::size_t i) { return std::uint32_t(static_cast<unsigned char>(text[i])); };
    const std::uint32_t lead = byte(0);
    if (lead < 0x80) return 1;
    const std::size_t length = lead < 0xc0 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf8 ? 4 : 0;
    if (length == 0 || text.size() < length) return 0;
    std::uint32_t code = lead & (0x7fu >> length);
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return 0;
        code = code << 6 | (byte(i) & 0x3f);
    }
    constexpr std::uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    return code >= smallest[length] && code <= 0x10ffff && !surrogate ? length : 0;
}

// U+0000 to U+001F, U+007F, and U+0080 to U+009F (two bytes in UTF-8), which some terminals obey too.
bool is_control(std::string_view character) {
    const auto first = static_cast<unsigned char>(character[0]);
    if (character.size() == 1) return (first < 0x20 || first == 0x7f) && first != '\n' && first != '\t';
    return character.size() == 2 && first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_for(Vocabulary vocabulary) {
    if (vocabulary == kByteVocabulary) return std::make_unique<ByteTokenizer>();
    return std::make_unique<IdTokenizer>(vocabulary);
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

}  // namespace llmc
