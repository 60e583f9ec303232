// tokenize.cpp - converts text files to token shards: every document starts with an end-of-text token, every K-th
// document, or the last tenth of every file, is held out for validation
#include <algorithm>
#include <csignal>
#include <ctime>
#include <iostream>
#include <limits>

#include "dev/tool_main.h"
#include "kernels/base/error.h"
#include "llmc/base/names.h"
#include "llmc/base/number_text.h"
#include "llmc/base/terminal.h"
#include "llmc/base/value_text.h"
#include "llmc/text/bpe_training.h"
#include "llmc/text/text_corpus.h"
#include "llmc/text/tokenizer_files.h"

using namespace base;
using llmc::short_text;

namespace {

constexpr std::int64_t kFewDocuments = 200;  // every 20th of fewer would be less than 10 documents

constexpr const char* kExamples =
    "Writes DIR/NAME_train_000000.bin, ... and DIR/NAME_val_000000.bin, ... from text files.\n\n"
    "  dev/tokenize -o data/mine --name mine --document-start '^$' book.txt\n"
    "  dev/tokenize -o data/more --tokenizer data/mine more.txt       # the same vocabulary\n"
    "  scripts/get_gpt2_tokenizer.sh && dev/tokenize -o data/web --tokenizer gpt2 web-*.jsonl.zst\n"
    "  dev/data/parquet_lines.py a.parquet b.parquet | dev/tokenize -o data/tables --format jsonl -\n"
    "  gzip -dc news.gz | dev/tokenize -o data/news --tokenizer gpt2 --document-start '^<doc' -\n";

cxxopts::Options command_line() {
    cxxopts::Options options("dev/tokenize", kExamples);
    options.custom_help("-o DIR [OPTION...]").positional_help("FILE...");
    const auto text = [](const char* otherwise) {
        return cxxopts::value<std::string>()->default_value(otherwise)->no_implicit_value();
    };
    const auto given = [] { return cxxopts::value<std::string>(); };
    options.add_options("Output")("o,output-dir", "folder for the shards; created if missing", given(), "DIR")(
        "name", "prefix of the shards' names", text("text"), "NAME")(
        "shard-tokens", "tokens per shard; the last one may be shorter", text("100000000"), "N")(
        "hold-out",
        "every K-th document goes to the validation shards; 0: none; auto: 20, or, if files have fewer than 200 "
        "documents, the last tenth of every file (of its text, or of its lines of JSON); not of pipes",
        text("auto"), "K");
    options.add_options("Token")(
        "tokenizer",
        "auto: that of DIR, if there is one; else bpe:N, N = 4096 (B / 5 MB)^0.15 for B bytes of training text, as a "
        "power of two; below 100 kB bytes; bytes: ids 0 to 255, and 256 for the end of text; gpt2: "
        "GPT-2's byte-level BPE, 50257 ids; bpe:N: one of N ids (256 bytes, merges, the end of text; 258 to 65536), "
        "trained on the training documents and saved beside the shards, as tokenizer.json; texts, also of pipes, stay "
        "in memory until then: the first gigabyte, or less if its different words alone have 32 MiB; PATH: that of a "
        "folder with a tokenizer.json, or a file of merges",
        text("auto"), "auto|bytes|gpt2|bpe:N|PATH")("merges",
                      "GPT-2's merges: merges.txt, vocab.bpe or tokenizer.json (default: "
                      "data/gpt2/vocab.bpe, written by scripts/get_gpt2_tokenizer.sh)",
                      given(), "FILE")(
        "threads", "encoding threads; 0: one per hardware thread, within the CPU quota of its control group", text("0"),
        "N");
    options.add_options("Input")(
        "format",
        "text, or jsonl: one object per line, each a document; auto: jsonl if the name ends with .json, .jsonl or "
        ".ndjson; "
        ".gz and .zst are decompressed (needs 2 GB for zstd --long=31); - is standard input",
        text("auto"), "auto|text|jsonl")(
        "field", "key of a jsonl object that holds the text", text("text"), "KEY")(
        "document-start", "a line that matches starts a document (default: one document per file)", given(), "REGEX")(
        "document-key",
        "consecutive lines with the same text in the first capture group are one document: '^([^:]+):' joins lines "
        "with the same text before the colon",
        given(), "REGEX");
    options.add_options("Other")("h,help", "print this help and exit");
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

void choose_tokenizer(const cxxopts::ParseResult& given, llmc::TextCorpusSettings& settings) {
    constexpr std::string_view kBpe = "bpe:";
    const std::string name = given["tokenizer"].as<std::string>();
    require(given.count("merges") == 0 || name == "gpt2", "--merges", "set with --tokenizer " + name,
            "--tokenizer gpt2", "leave it out, or use --tokenizer FILE for these merges");
    std::error_code none;
    if (name == "bytes") {
        settings.tokenizer = llmc::tokenizer_for(llmc::kByteVocabulary);
    } else if (name == "gpt2") {
        const std::string file =
            given.count("merges") ? given["merges"].as<std::string>() : llmc::find_gpt2_merges().string();
        require(!file.empty(), "data/gpt2/vocab.bpe, GPT-2's merges,", "missing", "a file of merges",
                "run scripts/get_gpt2_tokenizer.sh, or pass --merges FILE");
        settings.tokenizer = llmc::tokenizer_for(llmc::kGpt2Vocabulary, file);
    } else if (name.starts_with(kBpe)) {
        const int ids = llmc::parse_number("--tokenizer bpe:N", std::string_view(name).substr(kBpe.size()),
                                           llmc::kByteVocabulary.size + 1, llmc::kLargestVocabulary);
        require(ids != llmc::kGpt2Vocabulary.size, "--tokenizer", name, "another number of ids than GPT-2's 50257",
                "use bpe:50256");
        settings.ids_of_bpe = [ids](std::int64_t) { return ids; };
    } else if (name == "auto" && !std::filesystem::exists(settings.output_dir + "/tokenizer.json", none)) {
        settings.ids_of_bpe = llmc::ids_for_text;
    } else {
        const std::string path = name == "auto" ? settings.output_dir : name;
        require(std::filesystem::exists(path, none), "--tokenizer", in_quotes(name),
                "auto, bytes, gpt2, bpe:N, or the name of a folder or file with merges");
        settings.tokenizer = llmc::read_tokenizer(path);
    }
}

void show(llmc::ProgressLine& line, const llmc::TextCorpusProgress& progress) {
    if (!line.due()) return;
    const double took = line.seconds();
    std::string text = short_text(double(progress.bytes_read)) + "B";
    if (progress.bytes_in_all > 0)
        text += " of " + short_text(double(progress.bytes_in_all)) + "B, " +
                std::to_string(100 * progress.bytes_read / progress.bytes_in_all) + " %";
    const bool encodes = progress.tokens > 0;  // not before a BPE is trained, for which all of the text may be read
    if (encodes)
        text += " | " + short_text(double(progress.tokens)) + " tokens | " +
                short_text(double(progress.tokens) / took) + " tok/s";
    if (encodes && progress.bytes_read < progress.bytes_in_all)
        text += " | " +
                llmc::clock_text(took * (double(progress.bytes_in_all) / double(progress.bytes_read) - 1)) + " left";
    line.show(text);
}

// Records the first SIGINT, SIGTERM, SIGHUP or SIGXCPU, so that the work ends without partial files; run() then raises
// it again with the default action. A second SIGINT, at least a second later, ends the program at once.
volatile std::sig_atomic_t signal_taken = 0;
volatile std::time_t taken_at = 0;  // seconds

void take_signal(int number) {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    if (signal_taken == 0) {
        taken_at = now.tv_sec;
        signal_taken = number;
    } else if (number == SIGINT && now.tv_sec - taken_at >= 2) {
        std::signal(number, SIG_DFL);
        std::raise(number);
    }
}

struct Interrupted {};

void end_on_signals() {
    struct sigaction note {};
    note.sa_handler = take_signal;  // without SA_RESTART: a blocked read returns
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGXCPU}) {
        struct sigaction before {};
        ::sigaction(number, nullptr, &before);
        if (before.sa_handler != SIG_IGN) ::sigaction(number, &note, nullptr);
    }
}

void print(const char* split, const llmc::TextCorpusSplit& summary) {
    std::cout << split << llmc::counted(summary.documents, "document") << ", " << llmc::counted(summary.bytes, "byte")
              << ", " << llmc::counted(summary.tokens, "token");
    if (!summary.shards.empty())
        std::cout << ", " << llmc::counted(std::int64_t(summary.shards.size()), "shard") << ": "
                  << summary.shards.front();
    if (summary.shards.size() > 1) std::cout << " to " << summary.shards.back();
    std::cout << '\n';
}

void run(const cxxopts::ParseResult& given) {
    require(given.count("output-dir") > 0, "--output-dir", "not given", "the folder for the shards");
    const bool hold_out_auto = given["hold-out"].as<std::string>() == "auto";
    const auto number = [&](const std::string& flag, std::int64_t least, std::int64_t most) {
        return llmc::parse_number("--" + flag, given[flag].as<std::string>(), least, most);
    };
    constexpr std::int64_t kMany = std::numeric_limits<std::int64_t>::max();
    llmc::TextCorpusSettings settings = {
        .files = given.count("files") ? given["files"].as<std::vector<std::string>>() : std::vector<std::string>{},
        .output_dir = given["output-dir"].as<std::string>(),
        .name = given["name"].as<std::string>(),
        .documents = document_rule(given),
        .hold_out = hold_out_auto ? 20 : number("hold-out", 0, kMany),
        .tail_below = hold_out_auto ? kFewDocuments : 0,
        .shard_tokens = number("shard-tokens", 2, std::numeric_limits<std::int32_t>::max()),
        .format = llmc::value_by_name("--format", given["format"].as<std::string>(), llmc::kTextFormats),
        .field = given["field"].as<std::string>(),
        .threads = int(number("threads", 0, 1024)),
    };
    choose_tokenizer(given, settings);
    llmc::TextCorpusSummary summary;
    double seconds = 0;
    end_on_signals();
    try {
        llmc::ProgressLine line(true, 10);
        settings.progress = [&](const llmc::TextCorpusProgress& progress) {
            if (signal_taken != 0) throw Interrupted{};
            show(line, progress);
        };
        summary = llmc::write_text_corpus(settings);
        seconds = std::max(line.seconds(), 1e-9);
    } catch (const Interrupted&) {
        std::signal(signal_taken, SIG_DFL);
        std::raise(signal_taken);
    }
    const double bytes = double(summary.train.bytes + summary.val.bytes),
                 tokens = double(summary.train.tokens + summary.val.tokens);
    print("training:   ", summary.train);
    print("validation: ", summary.val);
    const llmc::Vocabulary vocabulary = summary.tokenizer->vocabulary();
    std::cout << "vocabulary: " << vocabulary.size << ", end of text " << vocabulary.end_of_text << '\n';
    if (!summary.tokenizer_file.empty()) {
        std::cout << "tokenizer:  " << summary.tokenizer_file;
        if (summary.trained_on > 0)
            std::cout << ", trained on " << (summary.trained_on < summary.train.bytes ? "the first " : "all ")
                      << short_text(double(summary.trained_on)) << "B";
        std::cout << '\n';
    }
    std::cout << llmc::format("took:       %.1f s on %s: %s tok/s, %sB/s, %.2f bytes per token\n", seconds,
                              llmc::counted(summary.threads, "thread").c_str(), short_text(tokens / seconds).c_str(),
                              short_text(bytes / seconds).c_str(), bytes / tokens);
    if (vocabulary.size < summary.ids_wanted)
        std::cout << "note:       fewer than " << summary.ids_wanted
                  << " ids, because no other pair of neighbours within words occurs twice\n";
    if (summary.tails)
        std::cout << "note:       fewer than " << kFewDocuments
                  << " documents, so the last tenth of every file is held out (--hold-out)\n";
    const std::int64_t parts = std::ssize(settings.files) * (summary.tails ? 2 : 1);
    for (const char* const flag : {"document-start", "document-key"})
        if (given.count(flag) && summary.train.documents + summary.val.documents == parts)
            std::cout << "note:       every file is one document, because no line matches --" << flag << '\n';
    const auto note = [](std::int64_t count, const char* noun, const char* what) {
        if (count > 0) std::cout << "note:       " << llmc::counted(count, noun) << ' ' << what << '\n';
    };
    note(summary.left_over, "file", "of killed runs found and removed");
    note(summary.boms, "file", "began with a byte order mark (U+FEFF), which was removed");
    note(summary.lone_surrogates, "escaped surrogate",
         "(\\ud800 to \\udfff) without the other half of a pair, replaced by U+FFFD");
    note(summary.binary_files, "file",
         "may be binary and not text, because there is a NUL in the first 8192 bytes");
    if (summary.invalid_bytes > 0)
        std::cout << llmc::format("note:       %s (%.3g %%) not in UTF-8, the first in ",
                                  llmc::counted(summary.invalid_bytes, "byte").c_str(),
                                  100 * double(summary.invalid_bytes) / bytes)
                  << summary.first_invalid << ", kept; iconv -f ENCODING -t UTF-8 converts text in LATIN1, GBK, ...\n";
    note(summary.crlf_lines, "line", "ended with CR LF, which was kept; sed 's/\\r$//' converts it to LF");
}

}  // namespace

int main(int argc, char** argv) {
    return tool_main("dev/tokenize", command_line(), argc, argv, run, {"Input", "Token", "Output", "Other"});
}
