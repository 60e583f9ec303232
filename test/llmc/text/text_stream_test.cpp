// text_stream_test.cpp - text that arrives in pieces is shown like the whole text
#include "llmc/text/tokenizer.h"

#include <random>

#include "test/support/catch.h"

using namespace llmc;

TEST_CASE("a character is shown as soon as it is complete", "[text_stream]") {
    TextStream stream;
    CHECK(stream.add("Gr") == "Gr");
    CHECK(stream.add("\xc3") == "");
    CHECK(stream.add("\xbc\xe2") == "\xc3\xbc");
    CHECK(stream.add("\x82") == "");
    CHECK(stream.add("\xac.") == "\xe2\x82\xac.");
    CHECK(stream.add("\xf0\x9f") == "");
    CHECK(stream.add("\x98\x80") == "\xf0\x9f\x98\x80");
    CHECK(stream.finish() == "");
}

TEST_CASE("pieces of any text are shown like the whole text", "[text_stream]") {
    std::mt19937 engine(1);
    // Lead bytes, continuation bytes and letters: mostly almost valid UTF-8.
    const std::string kBytes = "\xc3\xe2\xf0\xed\xc0\xff\x80\x82\xa0\xbf\x9f" "ab\n\x1b";
    for (int i = 0; i < 5000; ++i) {
        std::string text, shown;
        for (unsigned left = engine() % 12; left > 0; --left) text += kBytes[engine() % kBytes.size()];
        TextStream stream;
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t piece = 1 + engine() % 3;
            shown += stream.add(std::string_view(text).substr(at, piece));
            at += piece;
        }
        shown += stream.finish();
        CAPTURE(text);
        REQUIRE(shown == printable(text));
    }
}
