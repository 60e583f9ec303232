// bpe_training_test.cpp - merges that are learned from a text, by hand and against a direct implementation; shards with
// a BPE of their own
#include <random>

#include "llmc/text/bpe_tokenizer.h"
#include "llmc/text/bpe_training.h"
#include "llmc/text/text_corpus.h"
#include "llmc/text/tokenizer_files.h"
#include "test/support/shard_support.h"

using namespace llmc;
using namespace test;

namespace {

using Pairs = std::vector<std::string>;  // "a+b"

Pairs pairs_of(const BpeMerges& merges) {
    const std::vector<std::string> tokens = merges.tokens();
    Pairs pairs;
    for (const BpeMerge& merge : merges.merges) pairs.push_back(tokens[merge.left] + "+" + tokens[merge.right]);
    return pairs;
}

Pairs trained(const std::string& text, int most) {
    PieceCounts pieces;
    BpeMatcher matcher;
    pieces.add(text, matcher);
    return pairs_of(train_merges(pieces, most));
}

// Counts all pairs again for every merge.
Pairs trained_directly(const std::string& text, int most) {
    std::vector<std::vector<int>> words;
    BpeMatcher().split(text, [&](std::string_view piece) {
        for (words.emplace_back(); const char byte : piece)
            words.back().push_back(id_of_byte()[static_cast<unsigned char>(byte)]);
    });
    BpeMerges merges;
    while (std::ssize(merges.merges) < most) {
        std::map<std::pair<int, int>, int> counts;
        for (const auto& word : words)
            for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
        const auto best = std::ranges::max_element(counts, {}, [](const auto& pair) { return pair.second; });
        if (best == counts.end() || best->second < 2) break;
        const auto [left, right] = best->first;
        for (auto& word : words)
            for (std::size_t i = 0; i + 1 < word.size(); ++i)
                if (word[i] == left && word[i + 1] == right) {
                    word[i] = int(256 + merges.merges.size());
                    word.erase(word.begin() + std::ptrdiff_t(i) + 1);
                }
        merges.merges.push_back({std::uint16_t(left), std::uint16_t(right)});
    }
    return pairs_of(merges);
}

std::string random_words(unsigned seed, std::size_t length) {
    std::mt19937 random(seed);
    std::string text;
    while (text.size() < length) {
        for (auto letters = random() % 9; letters > 0; --letters) text += "aab\xc3\xa9"[random() % 5];
        text += ' ';
    }
    return text;
}

// The names of what is in the folder, with the contents.
std::map<std::string, std::string> all_files(const std::filesystem::path& folder) {
    std::map<std::string, std::string> files;
    for (const std::string& name : names_in(folder)) files[name] = read_bytes(folder / name);
    return files;
}

}  // namespace

TEST_CASE("the most frequent pair is merged first, of equal ones that of lower ids, while it occurs twice",
          "[tokenizer]") {
    CHECK(trained("ab-ab-cd-cd-ce", 100) == Pairs{"a+b", "c+d"});
    CHECK(trained("bc-abc-abc", 100) == Pairs{"b+c", "a+bc"});
    CHECK(trained("bc-bc a a", 100) == Pairs{"b+c", " +a"});  // the byte of a space is lower than b, its id is higher
    CHECK(trained("aaaa", 100) == Pairs{"a+a"});
    CHECK(trained("aaaa-aaaa", 100) == Pairs{"a+a", "aa+aa"});
    CHECK(trained("a b 1 2", 10).empty());
}

TEST_CASE("learned merges equal those of counting all pairs again after every merge", "[tokenizer]") {
    for (unsigned seed = 0; seed < 30; ++seed) {
        const std::string text = random_words(seed, seed % 3 == 0 ? 60 : 2000);
        REQUIRE(trained(text, 100) == trained_directly(text, 100));
    }
    CHECK(trained(std::string(5000, 'a'), 100).size() == 8);  // to 256 bytes
}

TEST_CASE("a larger text has more ids", "[tokenizer]") {
    for (const auto& [bytes, ids] : std::map<std::int64_t, int>{{1, 257}, {99'999, 257}, {100'000, 2048},
                                                                {1'000'000, 4096}, {30'000'000, 4096},
                                                                {80'000'000, 8192}, {10'000'000'000, 16384}})
        CHECK(ids_for_text(bytes) == ids);
}

TEST_CASE("a BPE is trained on the texts for training, the same on any number of threads", "[tokenizer]") {
    const ScratchFolder folder;
    std::string lines, words = random_words(1, 1'000'000);
    for (int i = 0; i < 40; ++i)
        lines += i % 4 == 3 ? "{\"text\": \"zzzz zzzz\"}\n" : "{\"text\": \"\\u00e9t\\u00e9\"}\n";
    const bool all = GENERATE(true, false);
    TextCorpusSettings settings = {.files = {write_bytes(folder / "a", words), write_bytes(folder / "b.jsonl", lines)},
                                   .output_dir = folder / "1",
                                   .hold_out = 0,
                                   .ids_of_bpe = [&](std::int64_t bytes) {
                                       CHECK((bytes == std::int64_t(words.size()) + 30 * 5 + 10 * 9) == all);
                                       return 300;
                                   },
                                   .most_to_train = all ? 1'000'000'000u : 500'000u,
                                   .threads = 1};
    const auto summary = write_text_corpus(settings);
    CHECK(summary.tokenizer->vocabulary().size == 300);
    CHECK(all == (summary.trained_on == summary.train.bytes));
    const auto files = all_files(folder / "1");
    CHECK(std::ssize(files) == 3);
    for (const int threads : {2, 7}) {
        settings.output_dir = folder / std::to_string(threads);
        settings.threads = threads;
        write_text_corpus(settings);
        CHECK((all_files(settings.output_dir) == files));
    }
    const auto tokenizer = load_tokenizer(folder / "1", Shard(folder / "1/text_train_000000.bin").vocabulary());
    CHECK(tokenizer->decode(tokens_of(folder / "1/text_train_*.bin")).substr(std::string(kEndOfTextLine).size())
              .starts_with(words));
    std::mt19937 random(1);
    std::string bytes;
    for (int i = 0; i < 2000; ++i) bytes += char(random());
    CHECK(tokenizer->decode(tokenizer->encode(bytes)) == bytes);
}

TEST_CASE("a BPE has no merges of the texts that are held out, and as many ids as the text has merges for",
          "[tokenizer]") {
    const ScratchFolder folder;
    TextCorpusSettings settings = {.files = {write_bytes(folder / "a", "abab\nxyxy\n")},
                                   .output_dir = folder / "out",
                                   .documents = DocumentRule::starting_at(""),
                                   .hold_out = 2,
                                   .ids_of_bpe = [](std::int64_t) { return 1000; }};
    const auto summary = write_text_corpus(settings);
    CHECK(summary.ids_wanted == 1000);
    CHECK(summary.tokenizer->encode("abxy") == std::vector<int>{256, 'x' - 33, 'y' - 33});
    CHECK(summary.tokenizer->vocabulary().size == 258);
    settings.name = "more";
    CHECK_THROWS_WITH(write_text_corpus(settings), Contains("tokenizer.json is already present; expected a folder "
                                                            "without another tokenizer; use it (--tokenizer "));
    settings.ids_of_bpe = {};
    settings.tokenizer = std::make_shared<BpeTokenizer>(parse_merges("merges", "h e\n"));
    CHECK_THROWS_WITH(write_text_corpus(settings), Contains("is already present"));
    settings.tokenizer = read_tokenizer(folder / "out");
    CHECK(write_text_corpus(settings).tokenizer_file == (folder / "out/tokenizer.json").string());
    CHECK_THROWS_WITH(ShardSet({folder / "out/more_train_*.bin", ShardBytes({1}, 258, 257).write(folder / "b")}),
                      Contains("258 ids, end of text 257 in ") && Contains("258 ids, end of text 257, merges "));

    settings = {.files = {write_bytes(folder / "c", "a-b-a-b")},
                .output_dir = folder / "none",
                .hold_out = 0,
                .ids_of_bpe = [](std::int64_t) { return 1000; }};
    CHECK(write_text_corpus(settings).tokenizer->vocabulary() == kByteVocabulary);
    CHECK(names_in(folder / "none") == std::set<std::string>{"text_train_000000.bin"});
}
