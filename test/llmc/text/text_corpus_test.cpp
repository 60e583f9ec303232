// text_corpus_test.cpp - texts in all formats, plain or compressed, on one or several threads, give the same shards
#include <zlib.h>
#include <zstd.h>

#include <random>

#include "llmc/text/bpe_tokenizer.h"
#include "llmc/text/text_corpus.h"
#include "llmc/text/text_source.h"
#include "test/support/shard_support.h"

using namespace llmc;
using namespace test;

namespace {

std::string gzipped(const std::string& text) {
    z_stream stream{};
    REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    std::string packed(deflateBound(&stream, uLong(text.size())), '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream.avail_in = uInt(text.size());
    stream.next_out = reinterpret_cast<Bytef*>(packed.data());
    stream.avail_out = uInt(packed.size());
    REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
    packed.resize(stream.total_out);
    deflateEnd(&stream);
    return packed;
}
std::string zstandard(const std::string& text) {
    std::string packed(ZSTD_compressBound(text.size()), '\0');
    packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
    return packed;
}

std::string read_all(const std::string& path, std::size_t at_once) {
    TextSource source(path);
    std::string text;
    std::vector<char> room(at_once);
    for (std::size_t got; (got = source.read(room)) > 0;) text.append(room.data(), got);
    return text;
}

// Spaces, letters, other alphabets, long runs, and invalid UTF-8.
std::string varied(std::size_t length) {
    std::mt19937 random(5);
    const std::vector<std::string> words = {"the ",         "ab",   " ",   "\n", "\xe6\x97\xa5",
                                            "\xe3\x80\x82", "\xff", "123", "'s", "-"};
    std::string text;
    while (text.size() < length) text += words[random() % words.size()];
    return text + std::string(700'000, 'a') + text + std::string(700'000, ' ') + "end";
}

std::shared_ptr<const Tokenizer> small_tokenizer() {
    return std::make_shared<BpeTokenizer>(parse_merges("merges", "t h\nth e\na a\naa aa\n\xc4\xa0 the\n1 2\n"));
}

}  // namespace

TEST_CASE("compressed files are decompressed", "[tokenizer]") {
    const ScratchFolder folder;
    const std::string text = varied(300'000), half = text.substr(0, 1000), rest = text.substr(1000);
    const std::string plain = write_bytes(folder / "a.txt", text),
                      zeros(300'000, '\0'), skipped("\x5f\x2a\x4d\x18\3\0\0\0abc", 11),
                      largest_window("\x28\xb5\x2f\xfd\0\xa8\1\0\0", 9),  // 2^31 bytes; an empty block
                      gz = write_bytes(folder / "a.txt.gz", gzipped(half) + gzipped(rest) + zeros),
                      zst = write_bytes(folder / "a.txt.zst", skipped + zstandard(half) + largest_window + skipped +
                                                                  zstandard(rest) + skipped);
    for (const std::string& path : {plain, gz, zst})
        for (const std::size_t at_once : {1000, 1 << 20}) CHECK((read_all(path, at_once) == text));
    for (const auto& [name, packed] : {std::pair("b.gz", gzipped(text)), std::pair("b.zst", zstandard(text))}) {
        const std::string path = write_bytes(folder / name, packed.substr(0, packed.size() / 2));
        CHECK_THROWS_WITH(read_all(path, 5000), Contains("text file " + path + " is cut off"));
        write_bytes(path, packed + "\1");
        CHECK_THROWS_WITH(read_all(path, 5000), Contains(path + " is "));
        std::string other = packed;
        for (std::size_t i = 20; i < other.size(); i += 7) other[i] = char(other[i] + 1);
        write_bytes(path, other);
        CHECK_THROWS_WITH(read_all(path, 5000), Contains("is damaged"));
        write_bytes(path, text);
        CHECK_THROWS_WITH(read_all(path, 5000), Contains("expected the format of its name"));
    }
}

TEST_CASE("a text that is cut off or grows while it is read is refused", "[tokenizer]") {
    const ScratchFolder folder;
    const std::int64_t end = GENERATE(300'000, 600'001);
    const std::string path = write_bytes(folder / "a.txt", std::string(600'000, 'a'));
    TextSource source(path);
    std::vector<char> room(1000);
    REQUIRE(source.read(room) == 1000);
    std::filesystem::resize_file(path, std::uintmax_t(end));
    CHECK_THROWS_WITH([&] { while (source.read(room) > 0) {} }(),
                      "text file " + path + " is " + std::to_string(end) + " bytes; expected the 600000 that it had "
                      "when it was opened; do not change it while it is read");
}

TEST_CASE("the contents, not the name, decide the format of a file, and other formats are refused", "[tokenizer]") {
    const ScratchFolder folder;
    const std::string text = varied(3000);
    for (const std::string& packed : {gzipped(text), zstandard(text)})
        CHECK((read_all(write_bytes(folder / "plain.txt", packed), 1000) == text));
    const std::string tar = std::string(257, 'a') + "ustar";
    for (const auto& [start, kind] : {std::pair("\xfd\x37zXZ", "compressed by xz"), {"BZh9", "compressed by bzip2"},
                                      {"PK\x03\x04", "a zip archive"}, {"PAR1", "a Parquet table"},
                                      {"\xff\xfe", "text in UTF-16"}, {"\xfe\xff", "text in UTF-16"},
                                      {"%PDF-1", "a PDF document"}, {tar.c_str(), "a tar archive"}})
        for (const std::string& file : {start + text, gzipped(start + text), zstandard(start + text)})
            CHECK_THROWS_WITH(read_all(write_bytes(folder / "a.txt", file), 1000),
                              Contains("a.txt is " + std::string(kind) + "; expected text in UTF-8"));
}

TEST_CASE("a BPE corpus has the ids of whole documents, on any number of threads", "[tokenizer]") {
    const ScratchFolder folder;
    const auto tokenizer = small_tokenizer();
    const std::string text = varied(500'000);
    const std::string file = write_bytes(folder / "a", text);
    std::vector<int> expected = tokenizer->encode(text);
    expected.insert(expected.begin(), tokenizer->vocabulary().end_of_text);
    for (const int threads : {1, 3}) {
        const auto summary = write_text_corpus({.files = {file},
                                                .output_dir = folder / "out",
                                                .name = "t" + std::to_string(threads),
                                                .hold_out = 0,
                                                .shard_tokens = 300'000,
                                                .tokenizer = tokenizer,
                                                .threads = threads});
        CHECK(summary.val.shards.empty());
        CHECK(summary.train.documents == 1);
        CHECK(summary.train.bytes == std::int64_t(text.size()));
        CHECK(summary.train.shards.size() == (expected.size() + 299'999) / 300'000);
        CHECK((tokens_of(folder / ("out/t" + std::to_string(threads) + "_train_*.bin")) == expected));
    }
}

TEST_CASE("a document that cannot be split may follow others in the same batch", "[tokenizer]") {
    const ScratchFolder folder;
    const auto tokenizer = small_tokenizer();
    const std::string short_text = varied(1000).substr(0, 1000), long_text(600'000, 'a');
    const std::string a = write_bytes(folder / "a", short_text), b = write_bytes(folder / "b", long_text),
                      c = write_bytes(folder / "c", short_text);
    write_text_corpus({.files = {a, b, c}, .output_dir = folder / "out", .hold_out = 0, .tokenizer = tokenizer});
    std::vector<int> expected;
    for (const std::string& text : {short_text, long_text, short_text}) {
        expected.push_back(tokenizer->vocabulary().end_of_text);
        const std::vector<int> ids = tokenizer->encode(text);
        expected.insert(expected.end(), ids.begin(), ids.end());
    }
    CHECK((tokens_of(folder / "out/text_train_*.bin") == expected));
}

TEST_CASE("of few documents the last tenth of every file is held out, cut after a line or a word", "[tokenizer]") {
    const ScratchFolder folder;
    // Prose longer than a chunk, and one long line. The last tenths start at 540,000 and at 900.
    const std::string prose = [] {
        std::string text;
        while (text.size() < 599'950) text += "some words of a line\n";
        return text + std::string(600'000 - text.size(), '.');
    }();
    const std::string words(950, 'a'), rest(49, 'b'), a = write_bytes(folder / "a.gz", gzipped(prose)),
                      b = write_bytes(folder / "b", words + ' ' + rest);
    const std::size_t cut = prose.find('\n', 540'000) + 1;
    const auto summary = write_text_corpus({.files = {a, b}, .output_dir = folder / "out", .tail_below = 3});
    CHECK(summary.tails);
    CHECK(summary.train.documents == 2);
    CHECK(summary.val.documents == 2);
    CHECK((tokens_of(folder / "out/text_train_*.bin") == byte_tokens({prose.substr(0, cut), words + ' '})));
    CHECK((tokens_of(folder / "out/text_val_*.bin") == byte_tokens({prose.substr(cut), rest})));

    const TextCorpusSettings several = {.files = {a, b},
                                       .output_dir = folder / "documents",
                                       .documents = DocumentRule::starting_at("^some"),
                                       .tail_below = 200};
    CHECK_FALSE(write_text_corpus(several).tails);
    const std::string word = write_bytes(folder / "word", "word\n");
    CHECK_THROWS_WITH(write_text_corpus({.files = {word}, .output_dir = folder / "none", .tail_below = 200}),
                      Contains("the text is too short to hold out its last tenth"));
    CHECK_FALSE(std::filesystem::exists(folder / "none"));
    write_bytes(word, std::string(1000, 'a'));
    TextCorpusSettings line = {.files = {word}, .output_dir = folder / "none", .tail_below = 200};
    CHECK_THROWS_WITH(write_text_corpus(line), Contains("the text is without a line end in its last tenth"));
    line.tail_below = 0;
    for (const auto& [text, format, advice] :
         {std::tuple("{\"text\": \"\"}\n", TextFormat::jsonl, "; lower --hold-out (0: none)"),
          {"one line", TextFormat::text, "; lower --hold-out (0: none)"},
          {"a line\n", TextFormat::text, "(0: none), or split the text with --document-key or --document-start"}}) {
        write_bytes(word, text);
        line.format = format;
        CHECK_THROWS_WITH(write_text_corpus(line), EndsWith(advice));
    }
}

TEST_CASE("of few lines of JSON the last tenth of every file is held out, at least one of two", "[tokenizer]") {
    const ScratchFolder folder;
    // held out 0: every 20th
    const auto [lines, held_out] = GENERATE(table<int, int>({{2, 1}, {19, 1}, {20, 2}, {198, 19}, {199, 0}}));
    std::string text;
    std::vector<int> train, val;
    for (int i = 0; i < lines; ++i) {
        const char letter = char('a' + i % 26);
        text += std::string("{\"text\": \"") + letter + "\"}\n \r\n";
        const bool held = held_out > 0 ? i >= lines - held_out : i % 20 == 19;
        for (const int id : {256, int(letter)}) (held ? val : train).push_back(id);
    }
    const std::string file = write_bytes(folder / "a.jsonl", text),
                      one = write_bytes(folder / "one.jsonl", R"({"text": "z"})");
    const auto summary =
        write_text_corpus({.files = {file, one}, .output_dir = folder / "out", .tail_below = 200});
    std::vector<int>& last = held_out > 0 ? train : val;  // document 200 of 200
    last.insert(last.end(), {256, 'z'});
    CHECK(summary.tails == (held_out > 0));
    CHECK(summary.val.documents == std::ssize(val) / 2);
    CHECK(tokens_of(folder / "out/text_val_*.bin") == val);
    CHECK(tokens_of(folder / "out/text_train_*.bin") == train);
    CHECK_THROWS_WITH(write_text_corpus({.files = {one}, .output_dir = folder / "none", .tail_below = 200}),
                      Contains("last tenth of a file, or two lines of JSON"));
}

TEST_CASE("the text field of each JSON line is a document", "[tokenizer]") {
    const ScratchFolder folder;
    const std::string lines =
        "{\"text\": \"the\\n\\u00e9\", \"id\": 1}\r\n\n{\"id\": 2, \"text\": \"\"}\n{\"text\":\"a\\\"\"}";
    const std::string file = write_bytes(folder / "a.jsonl.gz", gzipped("\xef\xbb\xbf" + lines));
    const auto summary = write_text_corpus({.files = {file}, .output_dir = folder / "out", .hold_out = 2});
    CHECK(summary.boms == 1);
    CHECK(summary.crlf_lines == 0);
    CHECK(tokens_of(folder / "out/text_train_*.bin") ==
          std::vector<int>{256, 't', 'h', 'e', '\n', 0xc3, 0xa9, 256, 'a', '"'});
    CHECK(tokens_of(folder / "out/text_val_*.bin") == std::vector<int>{256});
    CHECK(summary.train.documents == 2);
    CHECK(summary.train.bytes == 8);
    const auto refused = [&](const std::string& content, const std::string& field, const std::string& words) {
        const std::string other = write_bytes(folder / "b.jsonl", content);
        CHECK_THROWS_WITH(
            write_text_corpus({.files = {other}, .output_dir = folder / "new", .hold_out = 0, .field = field}),
            Contains(words));
        CHECK_FALSE(std::filesystem::exists(folder / "new"));
    };
    refused("{\"text\": \"a\"}\n{\"text\": 7}\n", "text",
            "b.jsonl: line 2: the field \"text\" is 7; expected a string; fix or remove the line");
    refused("{\"text\": \"a\"}\n", "body", "line 1: the field \"body\" is missing; expected a string; set --field");
    refused("{\"text\": \"a\"}\nx\n", "text", "line 2 is not valid JSON: invalid literal (column 1); expected an");
    refused("{\"text\": \"a\"}\n{\"text\":\"a\"}" + std::string(1, '\0') + "{\"text\":\"lost\"}garbage\n", "text",
            "line 2 is not valid JSON: a NUL (column 13)");
    refused("{\"text\": \"a\tb\"}", "text", "character U+0009 (HT) must be escaped to \\u0009 or \\t (column 12)");
    refused("{\"x\": -Infinity, \"y\": 1e999999, \"z\": NaN, \"text\": \"\\ud800\"}{}", "text",
            "unexpected '{'; expected end of input (column 60)");
    refused("{\"text\": \"a\xe9\"}", "text", "line 1 is not in UTF-8 (column 12); expected UTF-8; convert");
    refused("{\"a\": " + std::string(200, '[') + std::string(200, ']') + "}", "text", "more than 100 levels deep");
    refused("{\"text\": NaN}", "text", "the field \"text\" is null, NaN or Infinity; expected a string; fix");
    const std::string nan =
        write_bytes(folder / "c.jsonl", R"({"a":[NaN,Infinity,-Infinity,"NaN"],"text":"NaN"})");
    write_text_corpus({.files = {nan}, .output_dir = folder / "nan", .hold_out = 0});
    CHECK(tokens_of(folder / "nan/text_train_*.bin") == std::vector<int>{256, 'N', 'a', 'N'});
    refused("1\n", "text", "line 1 is not a JSON object");
    refused("\n\n", "text", "is empty; expected at least one line");
}

TEST_CASE("lines of JSON are known by their names in either case; other JSON is refused", "[tokenizer]") {
    const ScratchFolder folder;
    const std::string line = R"({"id": "a", "text": "b"})"
                             "\n";
    const auto tokens = [&](const std::string& name, const std::string& text, TextFormat format = {}) {
        const std::string file = write_bytes(folder / name, text);
        write_text_corpus({.files = {file}, .output_dir = folder / ("of-" + name), .hold_out = 0, .format = format});
        return tokens_of(folder / ("of-" + name + "/text_train_*.bin")).size();
    };
    for (const char* const name : {"a.json", "a.JSON", "a.JSONL", "a.NdJson"}) CHECK(tokens(name, line) == 2);
    CHECK(tokens("a.json.gz", gzipped(line)) == 2);
    CHECK(tokens("a.Json.ZST", zstandard(line)) == 2);
    CHECK(tokens("b.txt", line, TextFormat::jsonl) == 2);
    CHECK(tokens("b.json", "[1]", TextFormat::text) == 4);
    int number = 0;
    for (const std::string prose : {"{a}", "[1] a", "{\n\"a\" b", "{\"", "[{", "\"a\": b"})
        CHECK(tokens("prose" + std::to_string(++number), prose) == 1 + prose.size());
    for (const auto& [name, text, words] : std::vector<std::array<std::string, 3>>{
             {"c.txt", "\xef\xbb\xbf" + line,
              "lines of JSON, by its start; expected text, as its name does not end with .jsonl; set "
              "--format jsonl if each line is a document, or --format text"},
             {"c.log.gz", gzipped("\n" + line), "lines of JSON, by its start"},
             {"c.txt", "[\n{\"a\" :1}]", "an array of JSON"},
             {"c.json", "[" + line + "]",
              "an array of JSON; expected text, or lines of JSON: an object on each line; "
              "convert it: jq -c '.[]' FILE >NAME.jsonl; or set --format text"},
             {"c.txt", "{\r\n\"a\": 1}", "a JSON object on several lines"},
             {"c.json.zst", zstandard("{\n\"a\": 1}"), "convert it: jq -c . FILE >NAME.jsonl"}})
        CHECK_THROWS_WITH(tokens(name, text),
                          Contains("text file " + (folder / name).string() + " is ") && Contains(words));
}

TEST_CASE("an escaped surrogate without its pair is replaced by U+FFFD and counted", "[tokenizer]") {
    const ScratchFolder folder;
    const std::string file = write_bytes(
        folder / "a.jsonl", R"({"text": "\ud800y\\\ud800"})" "\n" R"({"text": "\udc00\uD83D\uDE00\\ud800"})" "\n");
    const auto summary = write_text_corpus({.files = {file}, .output_dir = folder / "out", .hold_out = 0});
    CHECK(summary.lone_surrogates == 3);
    const std::vector<int> ids = tokens_of(folder / "out/text_train_*.bin");
    CHECK(std::string(ids.begin() + 1, ids.end()) ==
          "\xef\xbf\xbdy\\\xef\xbf\xbd" + std::string(1, char(256)) + "\xef\xbf\xbd\xf0\x9f\x98\x80\\ud800");
}

TEST_CASE("bytes that are not UTF-8 are counted, and the first has a place", "[tokenizer]") {
    const ScratchFolder folder;
    const std::size_t chunk = 1 << 18;
    // a character in two chunks; then two invalid bytes, the second of which starts a character that ends early
    const std::string a = write_bytes(folder / "a", std::string(chunk - 2, 'a') + "\n\xc3\xa9\xff\xe6\x97\xa5\xe6"),
                      b = write_bytes(folder / "b", std::string(chunk - 1, 'a') + "\xe6\x97"),
                      binary = write_bytes(folder / "c", std::string("\0\xff", 2));
    const auto summary = write_text_corpus({.files = {a, b, binary}, .output_dir = folder / "out", .hold_out = 0});
    CHECK(summary.invalid_bytes == 4);
    CHECK(summary.first_invalid == "line 2 of " + a + ", byte " + std::to_string(chunk + 2));
}

TEST_CASE("a failure to publish the validation shards leaves no training shards and no tokenizer", "[tokenizer]") {
    const ScratchFolder folder;
    const std::string text = write_bytes(folder / "a", "aaaa\nb\n"), other = folder / "out/text_val_000000.bin";
    CHECK_THROWS_WITH(write_text_corpus({.files = {text},
                                         .output_dir = folder / "out",
                                         .documents = DocumentRule::starting_at(""),
                                         .hold_out = 2,
                                         .ids_of_bpe = [](std::int64_t) { return 300; },
                                         .progress = [&](const auto&) { write_bytes(other, "another's"); }}),
                      Contains("text_val_000000.bin is already present"));
    CHECK(names_in(folder / "out") == std::set<std::string>{"text_val_000000.bin"});
    // Nor does a tokenizer that another program has trained meanwhile become that of these shards.
    const auto train = [&](const std::string& out, const std::string& from, const TextCorpusSettings& more) {
        return write_text_corpus({.files = {from}, .output_dir = folder / out, .hold_out = 0,
                                  .ids_of_bpe = [](std::int64_t) { return 300; }, .progress = more.progress});
    };
    const std::string longer = write_bytes(folder / "b", "bcbcbcbc\n");
    CHECK_THROWS_WITH(train("both", text, {.progress = [&](const auto&) {
        if (!std::filesystem::exists(folder / "both/tokenizer.json")) {
            train("theirs", longer, {});
            std::filesystem::copy(folder / "theirs/tokenizer.json", folder / "both/tokenizer.json");
        }
    }}), Contains("both/tokenizer.json is already present"));
    CHECK(names_in(folder / "both") == std::set<std::string>{"tokenizer.json"});
}

TEST_CASE("a byte order mark is removed, and lines that end with CR LF are counted, but not in binary files",
          "[tokenizer]") {
    const ScratchFolder folder;
    const std::string a = write_bytes(folder / "a",
                                           "\xef\xbb\xbf"
                                           "x\r\ny\r\n\r"),
                      b = write_bytes(folder / "b", "\n");
    const auto summary = write_text_corpus({.files = {a, b}, .output_dir = folder / "out", .hold_out = 0});
    CHECK(summary.boms == 1);
    CHECK(summary.crlf_lines == 2);
    CHECK(tokens_of(folder / "out/text_train_*.bin") ==
          std::vector<int>{256, 'x', '\r', '\n', 'y', '\r', '\n', '\r', 256, '\n'});
    const std::string binary = write_bytes(folder / "a.bin", std::string("\1\0\r\n", 4)),
                      text = write_bytes(folder / "a.txt", std::string(9000, 'a') + std::string("\0\r\n", 3));
    const auto mixed = write_text_corpus({.files = {binary, text}, .output_dir = folder / "mixed", .hold_out = 0});
    CHECK(mixed.binary_files == 1);
    CHECK(mixed.crlf_lines == 1);
    const std::string only = write_bytes(folder / "only", "\xef\xbb\xbf");
    CHECK_THROWS_WITH(write_text_corpus({.files = {only}, .output_dir = folder / "none", .hold_out = 0}),
                      Contains("is empty"));
}
