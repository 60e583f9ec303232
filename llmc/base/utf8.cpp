// utf8.cpp - UTF-8 decoding and validation
#include "llmc/base/utf8.h"

#include <algorithm>
#include <cstring>

namespace llmc {
namespace {

std::uint32_t byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }
bool continues(std::string_view text, std::size_t i) { return (byte_at(text, i) & 0xc0) == 0x80; }

}  // namespace

std::uint32_t code_point(std::string_view character) {
    if (character.size() == 1) return byte_at(character, 0);
    std::uint32_t code = byte_at(character, 0) & (0x7fu >> character.size());
    for (std::size_t i = 1; i < character.size(); ++i) code = code << 6 | (byte_at(character, i) & 0x3f);
    return code;
}

std::size_t character_length(std::string_view text) {
    const std::uint32_t lead = byte_at(text, 0);
    if (lead < 0x80) return 1;
    const std::size_t length = lead < 0xc0 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf8 ? 4 : 0;
    if (length == 0 || text.size() < length) return 0;
    for (std::size_t i = 1; i < length; ++i)
        if (!continues(text, i)) return 0;
    const std::uint32_t code = code_point(text.substr(0, length));
    constexpr std::uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    return code >= smallest[length] && code <= 0x10ffff && !surrogate ? length : 0;
}

std::size_t valid_length(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
        std::uint64_t eight = 0;
        if (at + sizeof eight <= text.size()) {
            std::memcpy(&eight, text.data() + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        const std::size_t length = character_length(text.substr(at));
        if (length == 0) break;
        at += length;
    }
    return at;
}

std::size_t invalid_length(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size() && character_length(text.substr(at)) == 0) ++at;
    return at;
}

void TextCheck::append(std::string_view text, bool last) {
    constexpr std::size_t kLongest = 4;  // bytes of a character
    const std::string joined = cut_.empty() ? "" : cut_ + std::string(text);
    if (!cut_.empty()) text = joined;
    for (;; text.remove_prefix(1), ++bytes) {
        std::size_t valid = valid_length(text);
        if (!last && valid == text.size() && text.ends_with('\r')) --valid;
        for (std::size_t at = 0; (at = text.substr(0, valid).find('\n', at)) != text.npos; ++at, ++line_ends)
            crlf += at > 0 && text[at - 1] == '\r';
        bytes += std::int64_t(valid);
        text.remove_prefix(valid);
        if (text.empty() || (text.size() < kLongest && !last)) break;
        if (invalid++ > 0) continue;
        first_line = line_ends + 1;
        first_byte = bytes + 1;
    }
    cut_ = text;
}

bool is_white_space(std::uint32_t code) {
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xa0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
           code == 0x3000;
}

bool ends_with_white_space(std::string_view text) {
    if (text.empty()) return false;
    std::size_t length = 1;
    while (length < std::min<std::size_t>(4, text.size()) && continues(text, text.size() - length)) ++length;
    const std::string_view character = text.substr(text.size() - length);
    return character_length(character) == length && is_white_space(code_point(character));
}

}  // namespace llmc
