// text_stream.cpp - holds back an incomplete UTF-8 character
#include "llmc/text/text_stream.h"

#include <cstddef>
#include <utility>

#include "llmc/text/tokenizer.h"

namespace llmc {
namespace {

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

std::string TextStream::add(std::string_view bytes) {
    held_ += bytes;
    const std::size_t shown = held_.size() - unfinished(held_);
    std::string text = printable(std::string_view(held_).substr(0, shown));
    held_.erase(0, shown);
    return text;
}

std::string TextStream::finish() { return printable(std::exchange(held_, {})); }

}  // namespace llmc
