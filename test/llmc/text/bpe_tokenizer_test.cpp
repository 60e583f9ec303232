// bpe_tokenizer_test.cpp - byte-level BPE against a direct implementation and GPT-2's published ids; files of merges
#include <random>

#include "llmc/text/bpe_split.h"
#include "llmc/text/bpe_tokenizer.h"
#include "test/support/shard_support.h"

using namespace llmc;
using namespace test;
using Ids = std::vector<int>;

namespace {

std::vector<std::string> pieces(std::string_view text) {
    std::vector<std::string> found;
    BpeMatcher().split(text, [&](std::string_view piece) { found.emplace_back(piece); });
    return found;
}

// Random merges of earlier tokens, over a few letters so that they occur often.
BpeMerges random_merges(std::mt19937& random, int count) {
    const std::string letters = "abc '1.\n\xc3\xa9";
    std::vector<std::string> tokens;
    for (const char letter : letters) tokens.emplace_back(1, letter);
    std::string file = "#version: 0.2\n";
    std::vector<std::string> made = tokens;
    while (count > 0) {
        const std::string &left = made[random() % made.size()], &right = made[random() % made.size()];
        const std::string both = left + right;
        if (both.size() > 12 || std::find(made.begin(), made.end(), both) != made.end()) continue;
        file += byte_symbols(left) + " " + byte_symbols(right) + "\n";
        made.push_back(both);
        --count;
    }
    return parse_merges("merges", file);
}

// The direct, slow implementation: repeatedly applies the merge of lowest index of any two neighbours, leftmost first.
Ids merged_by_rule(const BpeMerges& table, std::string_view piece) {
    Ids parts;
    for (const char byte : piece) parts.push_back(id_of_byte()[static_cast<unsigned char>(byte)]);
    for (;;) {
        std::size_t best = table.merges.size(), where = 0;
        for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
            const BpeMerge pair{std::uint16_t(parts[i]), std::uint16_t(parts[i + 1])};
            const auto found = std::size_t(std::find(table.merges.begin(), table.merges.end(), pair) -
                                           table.merges.begin());
            if (found < best) best = found, where = i;
        }
        if (best == table.merges.size()) return parts;
        parts[where] = int(256 + best);
        parts.erase(parts.begin() + std::ptrdiff_t(where) + 1);
    }
}

std::string random_text(std::mt19937& random, std::size_t length) {
    const std::vector<std::string> words = {
        "a", "b", "c", "abc", " ", "  ", "\n", "'s", "'", "1", "23", ".", "\xc3\xa9", "\xe2\x80\x83", "\xe2\x80",
        "\xff", "\xf0\x9f\x98\x80", "aaaa", "\r\n"};
    std::string text;
    while (text.size() < length) text += words[random() % words.size()];
    return text;
}

}  // namespace

TEST_CASE("GPT-2's pieces, with Unicode's white space, letters and numbers", "[tokenizer]") {
    using Pieces = std::vector<std::string>;
    CHECK(pieces("I'll don't 'S we've").size() == 8);
    CHECK(pieces("it's 12x  y\n\n z ") == Pieces{"it", "'s", " 12", "x", " ", " y", "\n\n", " z", " "});
    CHECK(pieces(" \t x!?") == Pieces{" \t", " x", "!?"});
    CHECK(pieces("caf\xc3\xa9 \xd9\xa3\xc2\xbd") == Pieces{"caf\xc3\xa9", " \xd9\xa3\xc2\xbd"});
    // White space: U+0085, U+00A0, U+1680, U+2003, U+2028, U+202F, U+3000. Not: U+180E, U+200B, U+FEFF.
    for (const std::string space : {"\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80\x83", "\xe2\x80\xa8",
                                    "\xe2\x80\xaf", "\xe3\x80\x80", "\v", "\f"})
        CHECK(pieces("a" + space + space + "!") == Pieces{"a", space, space, "!"});
    for (const std::string other : {"\xe1\xa0\x8e", "\xe2\x80\x8b", "\xef\xbb\xbf"})
        CHECK(pieces("a" + other + other + "!") == Pieces{"a", other + other + "!"});
    CHECK(pieces("e\xcc\x81x") == Pieces{"e", "\xcc\x81", "x"});  // a combining mark is not a letter
    // Invalid UTF-8: a run of such bytes is a piece, and the piece before it ends there.
    CHECK(pieces("a  \xff\x80 b\xe2\x80") == Pieces{"a", "  ", "\xff\x80", " b", "\xe2\x80"});
    CHECK(pieces("").empty());
}

TEST_CASE("byte-level BPE of any bytes equals the direct implementation and decodes to the text", "[tokenizer]") {
    std::mt19937 random(1);
    for (int round = 0; round < 20; ++round) {
        const BpeMerges merges = random_merges(random, 40);
        const BpeTokenizer tokenizer(merges);
        const auto token_bytes = tokenizer.token_bytes();
        for (const std::size_t length : {1, 20, 300, 1000}) {
            const std::string text = random_text(random, length);
            Ids expected;
            for (const std::string& piece : pieces(text))
                for (const int id : merged_by_rule(merges, piece)) expected.push_back(id);
            REQUIRE(tokenizer.encode(text) == expected);
            REQUIRE(tokenizer.encode(text) == expected);  // from the cache
            REQUIRE(tokenizer.decode(expected) == text);
            std::size_t bytes = 0;
            for (const int id : expected) bytes += token_bytes.at(std::size_t(id));
            REQUIRE(bytes == text.size());
        }
        REQUIRE(token_bytes.size() == std::size_t(tokenizer.vocabulary().size));
        REQUIRE(token_bytes[std::size_t(tokenizer.vocabulary().end_of_text)] == 0);
        std::string letters;  // one piece, too long for the linear search
        for (int i = 0; i < 300; ++i) letters += "abc"[random() % 3];
        REQUIRE(tokenizer.encode(letters) == merged_by_rule(merges, letters));
        std::string bytes;
        for (int i = 0; i < 2000; ++i) bytes += char(random());
        REQUIRE(tokenizer.decode(tokenizer.encode(bytes)) == bytes);
    }
}

TEST_CASE("a text split at its certain prefix has the same ids, whatever follows", "[tokenizer]") {
    std::mt19937 random(2);
    const BpeMerges merges = random_merges(random, 60);
    const BpeTokenizer tokenizer(merges);
    int cuts = 0;
    for (int round = 0; round < 2000; ++round) {
        std::string text = random_text(random, 40);
        if (round % 3 == 0) std::erase_if(text, [](char c) { return c == ' ' || c == '\n' || c == '\r'; });
        const std::size_t seen = random() % (text.size() + 1);
        const std::size_t cut = tokenizer.certain_prefix(std::string_view(text).substr(0, seen));
        REQUIRE(cut <= seen);
        cuts += cut > 0;
        Ids apart = tokenizer.encode(std::string_view(text).substr(0, cut));
        const Ids rest = tokenizer.encode(std::string_view(text).substr(cut));
        apart.insert(apart.end(), rest.begin(), rest.end());
        REQUIRE(apart == tokenizer.encode(text));
    }
    CHECK(cuts > 1000);
}

TEST_CASE("a million equal letters do not take quadratic time", "[tokenizer]") {
    const BpeTokenizer tokenizer(parse_merges("merges", "a a\naa aa\naaaa aaaa\n"));
    CHECK(tokenizer.encode(std::string(1'000'003, 'a')).size() == 125'000 + 2);
}

TEST_CASE("all file formats of merges give the same table", "[tokenizer]") {
    const std::string lines = "#version: 0.2\nh e\n\xc4\xa0 t\n\xc4\xa0t he\n";
    const BpeMerges merges = parse_merges("merges.txt", lines);
    CHECK(merges.vocabulary() == Vocabulary{260, 259, merges.vocabulary().merges});
    CHECK(merges.vocabulary().merges != 0);
    CHECK(merges.tokens()[258] == " the");
    CHECK(merges.tokens()[0] == "!");
    CHECK(merges.tokens()[188] == std::string(1, '\0'));
    CHECK(merges.tokens()[220] == " ");
    CHECK_FALSE(merges.is_gpt2());

    std::string vocab;
    const std::vector<std::string> tokens = merges.tokens();
    for (std::size_t id = 0; id < tokens.size(); ++id) {
        const std::string symbols = byte_symbols(tokens[id]);
        const std::string escaped = symbols == "\"" || symbols == "\\" ? "\\" + symbols : symbols;
        vocab += "\"" + escaped + "\": " + std::to_string(id) + ", ";
    }
    const std::string as_gpt2 = R"({"type": "ByteLevel", "add_prefix_space": false})";
    const auto json = [&](const std::string& pairs, const std::string& other = "", const std::string& pieces = "") {
        return "{\"pre_tokenizer\": " + (pieces.empty() ? as_gpt2 : pieces) + ", \"model\": {" + other +
               "\"vocab\": {" + vocab + "\"<|endoftext|>\": 259}, \"merges\": [" + pairs + "]}}";
    };
    CHECK(parse_merges("tokenizer.json", json("\"h e\", \"\xc4\xa0 t\", \"\xc4\xa0t he\"")).merges == merges.merges);
    CHECK(parse_merges("tokenizer.json", json("[\"h\",\"e\"], [\"\xc4\xa0\",\"t\"], [\"\xc4\xa0t\",\"he\"]")).merges ==
          merges.merges);
    CHECK(parse_merges("merges.txt", "h e\r\n\xc4\xa0 t\r\n\xc4\xa0t he\r\n").merges == merges.merges);
    CHECK_THROWS_WITH(parse_merges("tokenizer.json", json("\"h e\", \"\xc4\xa0 t\"")),
                      Contains("no merge") || Contains("the result of a merge"));
    CHECK_THROWS_WITH(parse_merges("tokenizer.json", json("\"\xc4\xa0 t\", \"h e\", \"\xc4\xa0t he\"")),
                      Contains("model.vocab"));
    const std::string pairs = "\"h e\", \"\xc4\xa0 t\", \"\xc4\xa0t he\"";
    for (const auto& [pieces, key] : {std::pair(R"({"type": "Sequence"})", "pre_tokenizer.type"),
                                      {R"({"add_prefix_space": true})", "pre_tokenizer.add_prefix_space"},
                                      {R"({"use_regex": false})", "pre_tokenizer.use_regex"},
                                      {"null", "pre_tokenizer"}, {R"({}, "normalizer": {})", "normalizer"}})
        CHECK_THROWS_WITH(parse_merges("t", json(pairs, "", pieces)), Contains("t: " + std::string(key) + " is "));
    CHECK_THROWS_WITH(parse_merges("t", json(pairs, R"("end_of_word_suffix": "</w>", )")),
                      Contains("t: model.end_of_word_suffix is "));
    CHECK(parse_merges("t", json(pairs, R"("end_of_word_suffix": null, )")).merges == merges.merges);
}

TEST_CASE("invalid files of merges are refused with line and reason", "[tokenizer]") {
    const auto [text, words] = GENERATE(table<std::string, std::string>({
        {"", "is empty"},
        {"#version: 0.2\n", "the number of merges in m is 0"},
        {"h e\nhe\n", "m: line 2 is \"he\"; expected two symbols"},
        {"h e x\n", "m: line 1"},
        {"h e\nh e\n", "m: line 2: the merged token is \"he\"; expected a token that no earlier merge gives"},
        {"h el\n", "a part of the merge is \"el\"; expected a byte, or the result of an earlier merge"},
        {"h \xe2\x82\xac\n", "expected GPT-2's symbols for bytes"},
        {"h \xff\n", "expected GPT-2's symbols for bytes"},
        {" h\n", "expected GPT-2's symbols for bytes"},
        {"{\"a\": 1}", "without model.merges"},
        {"{\"a\"", "invalid"},
        {"IQ== 0\nIg== 1\n", "pass merges.txt, vocab.bpe or tokenizer.json"},  // tiktoken's ranks
    }));
    CHECK_THROWS_WITH(parse_merges("m", text), Contains(words) && !Contains("\n"));
    std::string doubled = "a a\n", token = "aa";  // malicious: would fill the memory
    for (int i = 0; i < 40; ++i, token += token)
        doubled += token + " " + token + "\n", i = token.size() > 70000 ? 40 : i;
    CHECK_THROWS_WITH(parse_merges("m", doubled), Contains("bytes of the merged token"));
    const ScratchFolder folder;
    CHECK_THROWS_WITH(read_merges(folder / "none"),
                      Contains("the merges " + (folder / "none").string() + " is missing"));
    const std::string other = write_bytes(folder / "other", "h e\n");
    CHECK_THROWS_WITH(tokenizer_for(kGpt2Vocabulary, other), Contains("another table (1 merges"));
}

TEST_CASE("GPT-2's ids equal those of OpenAI's program", "[tokenizer]") {
    const auto tokenizer = tokenizer_for(kGpt2Vocabulary, gpt2_merges());
    CHECK(tokenizer->vocabulary() == kGpt2Vocabulary);
    const std::vector<std::pair<std::string, Ids>> known = {
        {"Hello world", {15496, 995}},
        {"don't  stop   \012\012  123 caf\303\251", {9099, 470, 220, 2245, 220, 220, 220, 628, 220, 17031, 40304}},
        {"<|endoftext|>", {27, 91, 437, 1659, 5239, 91, 29}},
        {" \011\012 x", {220, 197, 198, 2124}},
        {"I'LL I'll we've'd", {40, 6, 3069, 314, 1183, 356, 1053, 1549}},
        {"\346\227\245\346\234\254\350\252\236\343\201\256\343\203\206\343\202\255\343\202\271\343\203\210\343\200\202",
         {33768, 98, 17312, 105, 45739, 252, 5641, 24336, 25084, 43302, 16764}},
        {"\360\237\221\251\342\200\215\360\237\221\251\342\200\215\360\237\221\247 \360\237\207\251\360\237\207\252!",
         {41840, 102, 447, 235, 41840, 102, 447, 235, 41840, 100, 12520, 229, 102, 8582, 229, 103, 0}},
        {"e\314\201\314\200 n\314\203", {68, 136, 223, 136, 222, 299, 136, 225}},
        {"a\302\240b\342\200\203c\342\200\213d\341\240\216e\343\200\200f\302\205g",
         {64, 1849, 65, 447, 225, 66, 9525, 67, 157, 254, 236, 68, 5099, 222, 69, 126, 227, 70}},
        {std::string("\000\001\177", 3), {188, 189, 221}},
        {"   ", {220, 220, 220}},
        {"3.14159e-10 = x_1", {18, 13, 1415, 19707, 68, 12, 940, 796, 2124, 62, 16}},
        {"antidisestablishmentarianism", {415, 29207, 44390, 3699, 1042}},
        {"\015\012\015\012\011if (x) {\015\012", {201, 198, 201, 198, 197, 361, 357, 87, 8, 1391, 201, 198}},
        {"\357\254\201 \302\275 \342\205\247 \331\243 x\302\262",
         {171, 105, 223, 25208, 2343, 227, 100, 18923, 96, 2124, 31185}},
    };
    for (const auto& [text, ids] : known) {
        CHECK(tokenizer->encode(text) == ids);
        CHECK(tokenizer->decode(ids) == text);
    }
    CHECK(tokenizer->decode(Ids{15496, 50256, 995}) == "Hello\n<|endoftext|>\n world");
    CHECK_THROWS_WITH(tokenizer->decode(Ids{50257}), Contains("expected 0 to 50256"));
    std::string bytes;
    for (int i = 0; i < 65536; ++i) bytes += char(i * 7919 >> 5);
    CHECK(tokenizer->decode(tokenizer->encode(bytes)) == bytes);
}
