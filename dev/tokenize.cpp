// tokenize.cpp - text files to token shards of bytes: every document preceded by an end of text, every so many-th held
// out for validation
#include <charconv>
#include <cxxopts.hpp>
#include <iostream>

#include "dev/tool_main.h"
#include "kernels/device/error.h"
#include "llmc/data/text_corpus.h"
#include "llmc/data/tokenizer.h"

namespace {

cxxopts::Options command_line() {
    cxxopts::Options options("dev/tokenize",
                             "Writes DIR/NAME_train_000000.bin, ... and DIR/NAME_val_000000.bin, ... from text files. "
                             "Tokens are bytes; id 256 is the end of text.\n");
    options.custom_help("-o DIR [OPTION...]").positional_help("FILE...").set_width(110);
    options.add_options()("o,output-dir", "folder for the shards; created if missing", cxxopts::value<std::string>(),
                          "DIR")("name", "what the shards' names begin with",
                                 cxxopts::value<std::string>()->default_value("text"), "NAME")(
        "document-start", "a line that matches begins a document (default: a file is one document)",
        cxxopts::value<std::string>(), "REGEX")("document-key",
                                                "neighbouring lines whose first (...) catches the same text are one "
                                                "document: '^([^:]+):' joins lines with the same text before the colon",
                                                cxxopts::value<std::string>(), "REGEX")(
        "hold-out", "every K-th document is for validation", cxxopts::value<std::string>()->default_value("20"), "K")(
        "shard-tokens", "tokens of a shard; the last one is shorter",
        cxxopts::value<std::string>()->default_value("100000000"), "N")("h,help", "print this and stop");
    options.add_options("files")("files", "text files", cxxopts::value<std::vector<std::string>>());
    options.parse_positional("files");
    return options;
}

llmc::DocumentRule document_rule(const cxxopts::ParseResult& given) {
    const bool start = given.count("document-start") > 0, key = given.count("document-key") > 0;
    require(!(start && key), "the number of rules for documents", 2, "at most 1",
            "give --document-start or --document-key, not both");
    if (start) return llmc::DocumentRule::starting_at(given["document-start"].as<std::string>());
    if (key) return llmc::DocumentRule::keyed_by(given["document-key"].as<std::string>());
    return llmc::DocumentRule::whole_text();
}

// Read here, for cxxopts' own message does not name the flag.
std::int64_t whole_number(const cxxopts::ParseResult& given, const std::string& flag) {
    const auto& text = given[flag].as<std::string>();
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    require(error == std::errc{} && end == text.data() + text.size(), "--" + flag, '"' + text + '"', "a whole number");
    return number;
}

void print(const char* split, const llmc::TextCorpusSplit& summary) {
    std::cout << split << summary.documents << " documents, " << summary.bytes << " bytes, " << summary.tokens
              << " tokens, " << summary.shards.size() << (summary.shards.size() == 1 ? " shard: " : " shards: ")
              << summary.shards.front();
    if (summary.shards.size() > 1) std::cout << " to " << summary.shards.back();
    std::cout << '\n';
}

void run(const cxxopts::ParseResult& given) {
    require(given.count("output-dir") > 0, "--output-dir", "not given", "the folder for the shards");
    const llmc::TextCorpusOptions options = {
        .files = given.count("files") ? given["files"].as<std::vector<std::string>>() : std::vector<std::string>{},
        .output_dir = given["output-dir"].as<std::string>(),
        .name = given["name"].as<std::string>(),
        .documents = document_rule(given),
        .hold_out = whole_number(given, "hold-out"),
        .shard_tokens = whole_number(given, "shard-tokens"),
    };
    const auto [train, val] = llmc::write_text_corpus(options);
    print("training:   ", train);
    print("validation: ", val);
    std::cout << "vocabulary: " << llmc::kByteVocabulary.size << ", end of text " << llmc::kByteVocabulary.end_of_text
              << '\n';
}

}  // namespace

int main(int argc, char** argv) { return tool_main("dev/tokenize", command_line(), argc, argv, run); }
