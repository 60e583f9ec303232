// tokenizer_files.cpp - writes a tokenizer as Hugging Face's JSON files
#include "llmc/text/tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/base/json_text.h"
#include "llmc/text/bpe_tokenizer.h"

namespace llmc {
namespace {

using nlohmann::ordered_json;

// The contents of tokenizer.json; `tokens` are in the order of their ids.
ordered_json tokenizer_json(const std::vector<std::string>& tokens, const std::vector<BpeMerge>& merges,
                            int end_of_text) {
    ordered_json vocabulary = ordered_json::object(), pairs = ordered_json::array();
    auto& by_name = vocabulary.get_ref<ordered_json::object_t&>();
    for (std::size_t id = 0; id < tokens.size(); ++id)  // not operator[], which searches linearly
        by_name.push_back({byte_symbols(tokens[id]), ordered_json(id)});
    by_name.push_back({std::string(kEndOfTextSymbol), ordered_json(end_of_text)});
    for (const BpeMerge& merge : merges)
        pairs.push_back(byte_symbols(tokens[merge.left]) + " " + byte_symbols(tokens[merge.right]));
    const auto byte_level = [](bool use_regex) {
        return ordered_json{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true},
                            {"use_regex", use_regex}};
    };
    return {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", ordered_json::array({{{"id", end_of_text}, {"content", kEndOfTextSymbol},
                                                   {"single_word", false}, {"lstrip", false}, {"rstrip", false},
                                                   {"normalized", false}, {"special", true}}})},
            {"normalizer", nullptr},
            {"pre_tokenizer", byte_level(true)},
            {"post_processor", byte_level(true)},
            {"decoder", byte_level(true)},
            {"model", {{"type", "BPE"}, {"dropout", nullptr}, {"unk_token", nullptr},
                       {"continuing_subword_prefix", ""}, {"end_of_word_suffix", ""}, {"fuse_unk", false},
                       {"byte_fallback", false}, {"vocab", std::move(vocabulary)}, {"merges", std::move(pairs)}}}};
}

constexpr std::string_view kTokenizerJson = "tokenizer.json";

// The file with the merges of a folder's tokenizer; empty if there is none.
std::filesystem::path merges_in(const std::filesystem::path& folder) {
    std::error_code none;
    for (const std::string_view name : {kTokenizerJson, std::string_view("merges.txt"), std::string_view("vocab.bpe")})
        if (std::filesystem::is_regular_file(folder / name, none)) return folder / name;
    return {};
}

}  // namespace

TokenizerFiles tokenizer_files(const Tokenizer& tokenizer, int positions) {
    const int end_of_text = tokenizer.vocabulary().end_of_text;
    const auto* const bpe = dynamic_cast<const BpeTokenizer*>(&tokenizer);
    if (!tokenizer.has_table()) return {};
    std::vector<std::string> bytes;
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, char(byte));
    const ordered_json all = bpe ? tokenizer_json(bpe->merges().tokens(), bpe->merges().merges, end_of_text)
                                 : tokenizer_json(bytes, {}, end_of_text);
    ordered_json config = {
        // Not GPT2Tokenizer for bytes: transformers would assign the ids of GPT-2's order.
        {"tokenizer_class", bpe ? "GPT2Tokenizer" : "PreTrainedTokenizerFast"},
        {"model_max_length", positions}, {"bos_token", kEndOfTextSymbol}, {"eos_token", kEndOfTextSymbol},
        {"unk_token", kEndOfTextSymbol}, {"pad_token", kEndOfTextSymbol}, {"add_prefix_space", false},
        {"clean_up_tokenization_spaces", false}};
    if (positions == 0) config.erase("model_max_length");
    const ordered_json generation = {
        {"bos_token_id", end_of_text}, {"eos_token_id", end_of_text}, {"pad_token_id", end_of_text}};
    return {{"tokenizer.json", text_of(all) + '\n'},
            {"tokenizer_config.json", text_of(config, 2) + '\n'},
            {"generation_config.json", text_of(generation, 2) + '\n'}};
}

TokenizerFiles read_tokenizer_files(const std::filesystem::path& folder) {
    TokenizerFiles files;
    std::error_code none;
    for (const char* const name :
         {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
          "merges.txt", "generation_config.json", "chat_template.jinja"})
        if (std::filesystem::is_regular_file(folder / name, none))
            files[name] = read_text((folder / name).string(), "a tokenizer's file");
    const bool complete = files.contains("tokenizer.json") ||
                          (files.contains("vocab.json") && files.contains("merges.txt"));
    return complete ? files : TokenizerFiles{};
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder, Vocabulary vocabulary) {
    const std::filesystem::path file = merges_in(folder);
    if (vocabulary == kGpt2Vocabulary && !file.empty()) return tokenizer_for(vocabulary, file);
    if (vocabulary != kGpt2Vocabulary && vocabulary != kByteVocabulary && file.filename() == kTokenizerJson) {
        auto own = std::make_unique<BpeTokenizer>(read_merges(file));
        const auto [size, end_of_text, merges] = own->vocabulary();
        if (vocabulary == Vocabulary{size, end_of_text, vocabulary.merges == 0 ? 0 : merges}) return own;
    }
    return tokenizer_for(vocabulary);
}

std::unique_ptr<Tokenizer> read_tokenizer(const std::filesystem::path& path) {
    const bool folder = std::filesystem::is_directory(path);
    const std::filesystem::path file = folder ? merges_in(path) : path;
    require(!file.empty(), "the folder " + path.string(), "without a tokenizer", "tokenizer.json, or merges.txt",
            "name a folder with shards of a BPE, or with a model");
    return std::make_unique<BpeTokenizer>(read_merges(file));
}

}  // namespace llmc
