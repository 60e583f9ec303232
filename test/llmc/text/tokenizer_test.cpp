// tokenizer_test.cpp - the byte tokenizer, documents of a text, and conversion of text files to shards
#include <functional>

#include "llmc/text/documents.h"
#include "llmc/text/text_corpus.h"
#include "llmc/text/tokenizer.h"
#include "test/support/shard_support.h"

using namespace llmc;
using namespace test;
using Documents = std::vector<std::string_view>;

namespace {

constexpr const char* kVerses =
    "Ge1:1 In the beginning\n"
    "Ge1:2 And the earth\n"
    "no verse\n"
    "Ge2:1 Thus the heavens\n"
    "Ge2:2 And on: the seventh\n"
    "Exo1:1 Now these\n"
    "Ge1:1 again";  // without a newline at the end

TextCorpusSettings corpus(const ScratchFolder& folder, const std::vector<std::string>& files) {
    return {.files = files, .output_dir = folder / "out", .name = "t", .hold_out = 2};
}

}  // namespace

TEST_CASE("the byte tokenizer decodes every text to itself", "[tokenizer]") {
    const auto tokenizer = tokenizer_for({257, 256});
    CHECK(tokenizer->vocabulary() == kByteVocabulary);
    std::string text = "Gr\xc3\xbc\xc3\x9f" "e <|endoftext|> ";
    for (int byte = 0; byte < 256; ++byte) text += char(byte);
    const std::vector<int> ids = tokenizer->encode(text);
    REQUIRE(ids.size() == text.size());
    CHECK(ids[2] == 0xc3);
    CHECK(*std::max_element(ids.begin(), ids.end()) == 255);  // "<|endoftext|>" in the text is ordinary text
    CHECK(tokenizer->decode(ids) == text);
    CHECK(tokenizer->encode("").empty());
    CHECK(tokenizer->decode(std::vector<int>{'a', 256, 'b'}) == "a\n<|endoftext|>\nb");
    CHECK_THROWS_WITH(tokenizer->decode(std::vector<int>{257}), Contains("is 257; expected 0 to 256"));
    CHECK_THROWS_AS(tokenizer->decode(std::vector<int>{-1}), Error);
    const auto bytes = tokenizer->token_bytes();
    REQUIRE(bytes.size() == 257);
    CHECK(std::count(bytes.begin(), bytes.end(), 1) == 256);
    CHECK(bytes[256] == 0);
}

TEST_CASE("a vocabulary without a table shows ids and encodes nothing", "[tokenizer]") {
    const auto tokenizer = tokenizer_for({50257, 50256}, "");
    CHECK(tokenizer->vocabulary() == Vocabulary{50257, 50256});
    CHECK(tokenizer->decode(std::vector<int>{15496, 11, 50256}) == "15496 11 50256");
    CHECK(tokenizer->decode({}).empty());
    CHECK(tokenizer->token_bytes().empty());
    CHECK_THROWS_WITH(tokenizer->decode(std::vector<int>{50257}), Contains("0 to 50256"));
    CHECK_THROWS_WITH(tokenizer->encode("Hello"),
                      Contains("50257 ids with end of text 50256") && Contains("expected 257") &&
                          Contains("scripts/get_gpt2_tokenizer.sh"));
    CHECK_THROWS_AS(tokenizer_for({257, 0})->encode("Hello"), Error);  // another end of text, another tokenizer
}

TEST_CASE("printable text is valid UTF-8 without control characters", "[tokenizer]") {
    const auto [text, shown] = GENERATE(table<std::string, std::string>({
        {"plain\n\ttext", "plain\n\ttext"},
        {"Gr\xc3\xbc\xc3\x9f" "e \xe2\x82\xac \xf0\x9f\x98\x80",
         "Gr\xc3\xbc\xc3\x9f" "e \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\x1b[2J\r\x7f", "\\x1b[2J\\x0d\\x7f"},
        {std::string("a\0b", 3), "a\\x00b"},
        {"\xc2\x9b" "31m", "\\xc2\\x9b" "31m"},              // U+009B, a control character in two bytes
        {"\xc2\xa0", "\xc2\xa0"},                           // the next code point is not a control character
        {"\x80\xff", "\\x80\\xff"},                         // no first byte
        {"\xe2\x82", "\\xe2\\x82"},                         // cut off
        {"\xe2\x82" "A", "\\xe2\\x82" "A"},
        {"\xc0\xaf\xe0\x80\xaf", "\\xc0\\xaf\\xe0\\x80\\xaf"},  // overlong
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},                // surrogate
        {"\xed\x9f\xbf\xee\x80\x80", "\xed\x9f\xbf\xee\x80\x80"},
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},       // past U+10FFFF
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
        {"\xf8\x88\x80\x80\x80", "\\xf8\\x88\\x80\\x80\\x80"},
    }));
    CHECK(printable(text) == shown);
}

TEST_CASE("documents by key: consecutive lines with the same key", "[tokenizer]") {
    const Documents expected = {"Ge1:1 In the beginning\nGe1:2 And the earth\nno verse\n",
                                "Ge2:1 Thus the heavens\nGe2:2 And on: the seventh\n", "Exo1:1 Now these\n",
                                "Ge1:1 again"};
    CHECK(DocumentRule::keyed_by("^([^:]+):").split(kVerses) == expected);
    CHECK(DocumentRule::keyed_by("^([^:]+):").split("title\n\nGe1:1 x\n") == Documents{"title\n\n", "Ge1:1 x\n"});
    CHECK(DocumentRule::keyed_by("^([^:]+):").split("no key\nat all\n") == Documents{"no key\nat all\n"});
    // a match in which the group does not participate has no key
    CHECK(DocumentRule::keyed_by("^(a)|b").split("a\nb\na\n") == Documents{"a\nb\na\n"});
    CHECK(DocumentRule::keyed_by("^(a?)").split("a\nb\n") == Documents{"a\n", "b\n"});      // an empty key is a key
    CHECK(DocumentRule::keyed_by("^(.)").split(std::string_view("\0x\n\0y\nz", 7)) ==
          Documents{std::string_view("\0x\n\0y\n", 6), "z"});
}

TEST_CASE("documents by start: a matching line starts a document", "[tokenizer]") {
    const auto rule = DocumentRule::starting_at("^Chapter [0-9]+$");
    CHECK(rule.split("preface\nChapter 1\na\nChapter 22\nChapter 3 is no title\n") ==
          Documents{"preface\n", "Chapter 1\na\n", "Chapter 22\nChapter 3 is no title\n"});
    CHECK(rule.split("Chapter 1\nChapter 2") == Documents{"Chapter 1\n", "Chapter 2"});
    CHECK(rule.split("").empty());
    CHECK(DocumentRule::starting_at("^$").split("a\n\nb\n\n\nc") == Documents{"a\n", "\nb\n", "\n\nc"});
    // White space alone is not a document: it belongs to the next one, or to the last.
    CHECK(DocumentRule::starting_at("^$").split("\n \na\n\n\r\n") == Documents{"\n \na\n\n\r\n"});
    CHECK(DocumentRule::starting_at("^$").split("a\n\nb\n\n\n") == Documents{"a\n", "\nb\n\n\n"});
    CHECK(DocumentRule::starting_at("^$").split("\n\n") == Documents{"\n\n"});
    CHECK(DocumentRule::whole_text().split(kVerses) == Documents{kVerses});
    CHECK(DocumentRule::whole_text().split("").empty());
    const std::string long_line(5'000'000, 'x');  // a matcher that recurses per character would overflow the stack
    CHECK(DocumentRule::starting_at("^(x|y)*$").split(long_line).size() == 1);
    CHECK_THROWS_WITH(DocumentRule::starting_at("(["), Contains("pattern \"([\" is malformed"));
    CHECK_THROWS_WITH(DocumentRule::keyed_by("^a"), Contains("without a group"));
}

TEST_CASE("shards have an end of text before every document, and every k-th is held out", "[tokenizer]") {
    const ScratchFolder folder;
    std::vector<std::string> files;
    std::vector<std::string> texts;
    for (int i = 0; i < 7; ++i) {
        texts.push_back("text " + std::to_string(i) + (i % 2 ? "\n" : "") + char(200 + i));
        files.push_back(write_bytes(folder / ("file" + std::to_string(i)), texts.back()));
    }
    TextCorpusSettings settings = corpus(folder, files);
    settings.hold_out = 3;
    settings.shard_tokens = 10;
    const auto summary = write_text_corpus(settings);
    CHECK(tokens_of(folder / "out/t_train_*.bin") == byte_tokens({texts[0], texts[1], texts[3], texts[4], texts[6]}));
    CHECK(tokens_of(folder / "out/t_val_*.bin") == byte_tokens({texts[2], texts[5]}));
    CHECK(summary.train.documents == 5);
    CHECK(summary.val.documents == 2);
    CHECK(summary.train.bytes == 5 * 7 + 2);  // two of them have a newline
    CHECK(summary.train.tokens == summary.train.bytes + 5);
    CHECK(summary.val.tokens == 7 + 8 + 2);
    CHECK(summary.train.shards.size() == 5);  // 42 tokens
    CHECK(summary.val.shards == std::vector<std::string>{folder / "out/t_val_000000.bin",
                                                         folder / "out/t_val_000001.bin"});
    CHECK(std::filesystem::file_size(folder / "out/t_val_000000.bin") == 1024 + 20);
}

TEST_CASE("invalid texts or settings are refused and leave no file", "[tokenizer]") {
    const ScratchFolder folder;
    const std::string a = write_bytes(folder / "a", "a"), b = write_bytes(folder / "b", "b"),
                      empty = write_bytes(folder / "empty", "");
    using Settings = TextCorpusSettings;
    const auto refused = [&](const auto& edit, const std::string& says) {
        CAPTURE(says);
        Settings settings = corpus(folder, {a, b});
        edit(settings);
        CHECK_THROWS_WITH(write_text_corpus(settings), Contains(says) && !Contains("\n"));
        CHECK(names_in(folder.path()) == std::set<std::string>{"a", "b", "empty"});
        CHECK(read_bytes(a) == "a");
    };
    struct Row { std::function<void(Settings&)> edit; std::string says; };
    for (const auto& [edit, says] : std::vector<Row>{
             {[](Settings& s) { s.files.clear(); }, "number of text files is 0"},
             {[&](Settings& s) { s.files.push_back(folder / "none"); },
              "text file " + (folder / "none").string() + " is missing"},
             {[&](Settings& s) { s.files.push_back(folder.path()); }, folder.path().string() + " is a folder"},
             {[&](Settings& s) { s.files.push_back(empty); }, "text file " + empty + " is empty"},
             {[&](Settings& s) { s.files.push_back(folder / "./a"); },
              "/./a is the same file as " + a + "; expected each file once"},
             {[](Settings& s) { s.hold_out = 1; }, "--hold-out is 1; expected N >= 2"},
             {[](Settings& s) { s.hold_out = 3; }, "number of documents is 2; expected at least the 3"},
             {[](Settings& s) { s.threads = -1; }, "--threads is -1; expected 0 to 1024"},
             {[](Settings& s) { s.format = TextFormat::jsonl, s.documents = DocumentRule::starting_at("^a"); },
              "--document-start or --document-key is set for lines of JSON"},
             {[](Settings& s) { s.field = "body"; }, "--field is \"body\" without"},
             {[](Settings& s) { s.format = TextFormat::jsonl; }, "a: line 1 is not valid JSON"},
             {[](Settings& s) { s.shard_tokens = 1; }, "--shard-tokens is 1"},
             {[](Settings& s) { s.output_dir = ""; }, "--output-dir"},
             {[&](Settings& s) { s.output_dir = a + "/out"; }, "output folder " + a + "/out"},
             {[&](Settings& s) { s.output_dir = a; }, "output folder " + a}})
        refused(edit, says);
    const ScratchFolder other;
    std::filesystem::create_symlink(other / "none", other / "link");
    for (const char* const name : {"link", "link/x"})
        refused([&](Settings& s) { s.output_dir = other / name; },
                "link is a symbolic link to " + (other / "none").string() +
                    ", which does not exist); expected a folder that this user may write to; create ");
    for (const char* const name : {"x/y", "", "..", "a*", "[1]", "{a}", "b\\", "c?", "d\n", "a.bin.partial-7"})
        refused([&](Settings& s) { s.name = name; },
                "the name of the shards is \"" + on_one_line(name) + "\"; expected a name without '/', *?");
}

TEST_CASE("if the disk is too full for the validation shards, no training shard remains either", "[tokenizer]") {
    const ScratchFolder folder;
    const std::string small = write_bytes(folder / "a", "a"),
                      large = write_bytes(folder / "b", std::string(5000, 'b'));
    const FullDisk disk(2000);
    CHECK_THROWS_WITH(write_text_corpus(corpus(folder, {small, large})),
                      Contains("writing shard") && Contains("t_val_000000.bin"));
    CHECK(std::filesystem::is_empty(folder / "out"));
}

TEST_CASE("older shards of the same name are not mixed with new ones", "[tokenizer]") {
    const ScratchFolder folder;
    const std::string a = write_bytes(folder / "a", "a"), b = write_bytes(folder / "b", "b");
    TextCorpusSettings settings = corpus(folder, {a, b});
    write_text_corpus(settings);
    const std::string before = read_bytes(folder / "out/t_train_000000.bin");
    settings.files = {b, a};
    CHECK_THROWS_WITH(write_text_corpus(settings), Contains("already present") && Contains("without shards named t"));
    CHECK(read_bytes(folder / "out/t_train_000000.bin") == before);
    settings.name = "u";
    CHECK_NOTHROW(write_text_corpus(settings));
}

TEST_CASE("documents do not depend on the sizes of the chunks of a text", "[tokenizer]") {
    const std::string text = "\n a\n\nGe1:1 x\n \n\nGe1:2 y\r\n\n\nz Ge1:1\n\n \n";
    for (const DocumentRule& rule : {DocumentRule::starting_at("^$"), DocumentRule::keyed_by("^([^:]+):"),
                                     DocumentRule::starting_at("^Ge"), DocumentRule::whole_text()}) {
        const Documents expected = rule.split(text);
        for (std::size_t chunk = 1; chunk < 9; ++chunk) {
            std::vector<std::string> found;
            DocumentStream stream(rule, [&](std::string_view part, bool begins) {
                if (begins) found.emplace_back();
                found.back() += part;
            });
            for (std::size_t at = 0; at < text.size(); at += chunk)
                stream.append(std::string_view(text).substr(at, chunk));
            stream.end();
            CHECK(std::equal(found.begin(), found.end(), expected.begin(), expected.end()));
        }
    }
}
