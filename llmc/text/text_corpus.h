// text_corpus.h - converts text files to training and validation shards of tokens
//
// An end-of-text token precedes every document. Documents are numbered through all files in order; every hold_out-th
// goes to the validation shards. If there are few documents, the tail of every file does: what follows the first line
// end in its last tenth, or the last tenth of its lines of JSON, at least one of two. Texts are read in chunks and
// encoded on several threads: each takes a few megabytes of memory, plus the longest line (if a rule splits documents
// by lines) and the longest text that the tokenizer cannot split. To train a BPE the texts stay in memory until its
// merges are known: at most the first gigabyte, so that pipes can be tokenized, too.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/names.h"
#include "llmc/text/documents.h"
#include "llmc/text/tokenizer.h"

namespace llmc {

enum class TextFormat { automatic, text, jsonl };
inline constexpr Named<TextFormat> kTextFormats[] = {
    {"auto", TextFormat::automatic}, {"text", TextFormat::text}, {"jsonl", TextFormat::jsonl}};

struct TextCorpusProgress {
    std::int64_t bytes_read = 0, bytes_in_all = 0;  // of the files on disk; bytes_in_all 0: not known
    std::int64_t tokens = 0;
};

struct TextCorpusSettings {
    std::vector<std::string> files;  // text_source.h; a document never spans two
    std::string output_dir;          // created if missing
    std::string name = "text";       // of the shards: NAME_train_000000.bin, NAME_val_000000.bin, ...
    DocumentRule documents = DocumentRule::whole_text();  // for text; in jsonl every line is a document
    std::int64_t hold_out = 20;                           // every N-th document is for validation; 0: none
    // If there are fewer documents, the tails of files are for validation; 0: never. Not for pipes, which can be read
    // only once.
    std::int64_t tail_below = 0;
    std::int64_t shard_tokens = 100'000'000;
    std::shared_ptr<const Tokenizer> tokenizer = tokenizer_for(kByteVocabulary);
    // If set, a BPE with this number of ids (end of text included) is trained on the texts for training, and used
    // instead: on the first `most_to_train` bytes, or less if the different words alone have 32 MiB. Called with the
    // bytes of these texts. Fewer ids if the text has fewer merges; with 257 ids, or no merge, bytes.
    std::function<int(std::int64_t bytes)> ids_of_bpe{};
    std::size_t most_to_train = 1'000'000'000;
    // automatic: jsonl if the name, without .gz or .zst and in either case, ends with .json, .jsonl or .ndjson
    TextFormat format = TextFormat::automatic;
    std::string field = "text";  // of a line of JSON
    int threads = 0;             // 0: device::usable_threads()
    // Called frequently on the caller's thread, also when a signal interrupts a read. If it throws, the work ends and
    // no shard remains.
    std::function<void(const TextCorpusProgress&)> progress{};
};

struct TextCorpusSplit {
    std::int64_t documents = 0, bytes = 0, tokens = 0;
    std::vector<std::string> shards;
};
struct TextCorpusSummary {
    TextCorpusSplit train, val;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::string tokenizer_file;   // in the output folder; empty: of bytes and GPT-2's there is none
    std::int64_t trained_on = 0;  // bytes of text; 0: the tokenizer was given
    int ids_wanted = 0;           // of the trained one
    bool tails = false;           // the tails of files are for validation
    std::int64_t crlf_lines = 0;  // lines of text that end with CR LF, which is not changed; not of binary files
    std::int64_t binary_files = 0;     // files with a NUL near their start
    std::int64_t invalid_bytes = 0;    // of text that is not UTF-8, which is not changed; not of binary files
    std::string first_invalid;         // the place of the first: "line 3 of a.txt, byte 70"
    std::int64_t lone_surrogates = 0;  // escaped in lines of JSON, replaced by U+FFFD
    std::int64_t boms = 0;        // files that start with U+FEFF, which is removed
    std::int64_t bytes_read = 0;  // of the files on disk
    std::int64_t left_over = 0;   // removed temporary files of killed processes
    int threads = 0;
};

// Throws Error, and leaves no shard behind, if a file cannot be read, is empty, is damaged or does not consist of JSON
// lines, an option is out of range, there are too few documents for training or validation, the folder cannot be
// written to, or it already has shards of that name, or the files of another tokenizer.
TextCorpusSummary write_text_corpus(const TextCorpusSettings& settings);

}  // namespace llmc
