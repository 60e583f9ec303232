// text_stream.h - printable text from bytes that arrive a few at a time
#pragma once
#include <string>
#include <string_view>

namespace llmc {

// The concatenated output equals printable() (tokenizer.h) of the whole text. Output comes as early as possible: only
// the bytes of an incomplete UTF-8 character are held back.
class TextStream {
public:
    // The text that can be shown after `bytes` have arrived.
    std::string add(std::string_view bytes);
    // The rest: the bytes of an incomplete character as \xe2 etc. Afterwards a new text may start.
    std::string finish();

private:
    std::string held_;  // at most three bytes
};

}  // namespace llmc
