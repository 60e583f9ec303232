// tokenizer_files_test.cpp - the tokenizer files for transformers, and reading them back
#include <nlohmann/json.hpp>

#include "llmc/text/bpe_tokenizer.h"
#include "llmc/text/tokenizer_files.h"
#include "test/support/shard_support.h"

using namespace llmc;
using test::Contains;
using nlohmann::json;

TEST_CASE("the files of the byte tokenizer have a token for each byte, with its value as id", "[tokenizer]") {
    const TokenizerFiles files = tokenizer_files(*tokenizer_for(kByteVocabulary), 128);
    REQUIRE(files.size() == 3);
    const json all = json::parse(files.at("tokenizer.json")), &vocabulary = all["model"]["vocab"];
    CHECK(vocabulary.size() == 257);
    for (int byte = 0; byte < 256; ++byte) CHECK(vocabulary[byte_symbols(std::string(1, char(byte)))] == byte);
    CHECK(vocabulary["<|endoftext|>"] == 256);
    CHECK(all["model"]["merges"].empty());
    CHECK(all["added_tokens"][0]["id"] == 256);
    CHECK(json::parse(files.at("tokenizer_config.json"))["model_max_length"] == 128);
    CHECK(json::parse(files.at("generation_config.json"))["eos_token_id"] == 256);
    CHECK(tokenizer_files(*tokenizer_for({300, 299}, ""), 128).empty());
    CHECK(load_tokenizer("nowhere", kByteVocabulary)->encode("a") == std::vector<int>{'a'});
}

TEST_CASE("the files of a BPE tokenizer contain its merges", "[tokenizer]") {
    const BpeTokenizer tokenizer(parse_merges("merges", "t h\nth e\n\xc4\xa0 the\n\" \\\n"));
    const TokenizerFiles files = tokenizer_files(tokenizer, 64);
    CHECK(parse_merges("tokenizer.json", files.at("tokenizer.json")).merges == tokenizer.merges().merges);
    CHECK(json::parse(files.at("tokenizer.json"))["model"]["vocab"]["<|endoftext|>"] == 260);
}

TEST_CASE("the merges in a model's folder take precedence", "[tokenizer]") {
    const test::ScratchFolder folder;
    test::write_bytes(folder / "merges.txt", "h e\n");
    CHECK_THROWS_WITH(load_tokenizer(folder.path(), kGpt2Vocabulary), Contains("merges.txt is another table"));
    CHECK_FALSE(load_tokenizer(folder.path(), {300, 299})->has_table());
    const auto tokenizer = tokenizer_for(kGpt2Vocabulary, test::gpt2_merges());
    for (const auto& [name, contents] : tokenizer_files(*tokenizer, 1024)) test::write_bytes(folder / name, contents);
    const auto again = load_tokenizer(folder.path(), kGpt2Vocabulary);  // tokenizer.json comes before merges.txt
    CHECK(again->encode("Hello world") == std::vector<int>{15496, 995});
}
