// text_corpus.h - text files to training and validation shards of bytes
//
// Every document is preceded by the end of text. Documents are counted through all files in their order; every
// hold_out-th goes to the validation shards.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/data/documents.h"

namespace llmc {

struct TextCorpusOptions {
    std::vector<std::string> files;  // a document never spans two
    std::string output_dir;          // created if missing
    std::string name = "text";       // of the shards: NAME_train_000000.bin, NAME_val_000000.bin, ...
    DocumentRule documents = DocumentRule::whole_text();
    std::int64_t hold_out = 20;
    std::int64_t shard_tokens = 100'000'000;
};

struct TextCorpusSplit {
    std::int64_t documents = 0, bytes = 0, tokens = 0;
    std::vector<std::string> shards;
};
struct TextCorpusSummary {
    TextCorpusSplit train, val;
};

// Throws Error, and leaves no shard behind, where a file cannot be read or is empty, an option is out of range, nothing
// would be left for training or for validation, the folder cannot be written to, or it holds shards of that name
// already.
TextCorpusSummary write_text_corpus(const TextCorpusOptions& options);

}  // namespace llmc
