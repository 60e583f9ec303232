// text_corpus.h - text files to training and validation shards of tokens
//
// Every document is preceded by the end of text. Documents are counted through all files in their order; every
// hold_out-th goes to the validation shards. Texts are read stretch by stretch and encoded on several threads: memory
// holds some megabytes for each, beside the longest line (where documents are told apart by lines) and the longest run
// of text that the tokenizer cannot cut.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/names.h"
#include "llmc/data/documents.h"
#include "llmc/data/tokenizer.h"

namespace llmc {

enum class TextFormat { automatic, text, jsonl };
inline constexpr Named<TextFormat> kTextFormats[] = {
    {"auto", TextFormat::automatic}, {"text", TextFormat::text}, {"jsonl", TextFormat::jsonl}};

struct TextCorpusProgress {
    std::int64_t bytes_read = 0, bytes_in_all = 0;  // of the files as they lie on the disk; in all: 0 if not known
    std::int64_t tokens = 0;
};

struct TextCorpusOptions {
    std::vector<std::string> files;  // text_source.h; a document never spans two
    std::string output_dir;          // created if missing
    std::string name = "text";       // of the shards: NAME_train_000000.bin, NAME_val_000000.bin, ...
    DocumentRule documents = DocumentRule::whole_text();  // of text; in jsonl every line is a document
    std::int64_t hold_out = 20;                           // 0: nothing is
    std::int64_t shard_tokens = 100'000'000;
    std::shared_ptr<const Tokenizer> tokenizer = tokenizer_for(kByteVocabulary);
    TextFormat format =
        TextFormat::automatic;   // jsonl where the name, without .gz or .zst, ends with .jsonl or .ndjson
    std::string field = "text";  // of jsonl
    int threads = 0;             // 0: one a core
    // Called often, by the caller's thread, and where a signal interrupts a read; what it throws ends the work, with
    // no shard left behind.
    std::function<void(const TextCorpusProgress&)> progress{};
};

struct TextCorpusSplit {
    std::int64_t documents = 0, bytes = 0, tokens = 0;
    std::vector<std::string> shards;
};
struct TextCorpusSummary {
    TextCorpusSplit train, val;
    std::int64_t crlf_lines = 0;  // of text, which keeps them
    std::int64_t boms = 0;        // files that began with U+FEFF, which is left out
    std::int64_t bytes_read = 0;  // of the files as they lie on the disk
    std::int64_t left_over = 0;   // files of runs that were killed, which were removed
    int threads = 0;
};

// Throws Error, and leaves no shard behind, where a file cannot be read, is empty, damaged or no JSON lines, an option
// is out of range, nothing would be left for training or for validation, the folder cannot be written to, or it holds
// shards of that name already.
TextCorpusSummary write_text_corpus(const TextCorpusOptions& options);

}  // namespace llmc
