// text_stream.h - text fit for a terminal while it grows by a few bytes at a time
#pragma once
#include <string>
#include <string_view>

namespace llmc {

// Shows what printable() (tokenizer.h) shows of the whole text, as early as it is decided: the bytes of a character of
// UTF-8 that is not complete yet are held back.
class TextStream {
public:
    // What can be shown now that `bytes` have come.
    std::string add(std::string_view bytes);
    // The rest: of a character that was never completed \xe2 and the like. The next text may begin.
    std::string finish();

private:
    std::string held_;  // at most three bytes
};

}  // namespace llmc
