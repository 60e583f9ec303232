// text_corpus.cpp - text files to training and validation shards, one document after the other
#include "llmc/data/text_corpus.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "kernels/device/error.h"
#include "llmc/base/mapped_file.h"
#include "llmc/data/shard_writer.h"
#include "llmc/data/tokenizer.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kChunkBytes = 1 << 20;  // encoded at a time; bytes can be cut anywhere

void check(const TextCorpusOptions& options) {
    require(!options.files.empty(), "number of text files", 0, "at least 1", "name the files to read");
    require(!options.output_dir.empty(), "the output folder", "empty", "a folder", "give --output-dir");
    require(!options.name.empty() && options.name.find('/') == std::string::npos, "the name of the shards",
            '"' + options.name + '"', "a name without '/'", "change --name");
    require(options.hold_out >= 2, "--hold-out", options.hold_out,
            "at least 2: every so many-th document is held out for validation, the others are for training");
    require(options.shard_tokens >= 2 && options.shard_tokens <= std::numeric_limits<std::int32_t>::max(),
            "--shard-tokens", options.shard_tokens, "2 to 2147483647");
}

// Shards of an earlier run would be read together with the new ones.
void refuse_older_shards(const fs::path& folder, const std::string& name) {
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
        const std::string file = entry->path().filename().string();
        if ((file.starts_with(name + "_train_") || file.starts_with(name + "_val_")) && file.ends_with(".bin"))
            fail("output file " + entry->path().string(), "there already", "a folder without shards named " + name,
                 "remove them, or change --name or --output-dir");
    }
    if (error)
        fail("output folder " + folder.string(), "unreadable (" + error.message() + ")",
             "a folder this user may read and write", "change --output-dir");
}

class SplitWriter {
public:
    SplitWriter(const TextCorpusOptions& options, const char* split)
        : bytes_(tokenizer_for(kByteVocabulary)),
          shards_((fs::path(options.output_dir) / (options.name + split)).string(), kByteVocabulary,
                  options.shard_tokens) {}

    void write(std::string_view document) {
        ++summary_.documents;
        summary_.bytes += std::int64_t(document.size());
        const std::uint16_t end_of_text = kByteVocabulary.end_of_text;
        shards_.append({&end_of_text, 1});
        for (; !document.empty(); document.remove_prefix(std::min(kChunkBytes, document.size()))) {
            const std::vector<int> ids = bytes_->encode(document.substr(0, kChunkBytes));
            const std::vector<std::uint16_t> narrow(ids.begin(), ids.end());
            shards_.append(narrow);
        }
    }
    void seal() { shards_.seal(); }
    TextCorpusSplit publish() {
        summary_.tokens = shards_.tokens();
        summary_.shards = shards_.publish();
        return summary_;
    }

private:
    std::unique_ptr<Tokenizer> bytes_;
    ShardSeriesWriter shards_;
    TextCorpusSplit summary_;
};

}  // namespace

TextCorpusSummary write_text_corpus(const TextCorpusOptions& options) {
    check(options);
    std::vector<MappedFile> files;
    std::vector<std::string_view> documents;
    for (const std::string& path : options.files) {
        files.emplace_back(path, "text file");
        require(!files.back().bytes().empty(), "text file " + path, "empty", "at least one byte", "leave it out");
        const auto found = options.documents.split(files.back().text());
        documents.insert(documents.end(), found.begin(), found.end());
    }
    require(std::int64_t(documents.size()) >= options.hold_out, "number of documents", documents.size(),
            "at least the " + std::to_string(options.hold_out) + " of --hold-out, so that one is left for validation",
            "lower --hold-out, or split the text with --document-key or --document-start");

    std::error_code error;
    fs::create_directories(options.output_dir, error);
    if (error)
        fail("output folder " + options.output_dir, "impossible to create (" + error.message() + ")",
             "a folder this user may write to", "change --output-dir");
    refuse_older_shards(options.output_dir, options.name);

    SplitWriter train(options, "_train"), val(options, "_val");
    for (std::size_t i = 0; i < documents.size(); ++i)
        (std::int64_t(i + 1) % options.hold_out == 0 ? val : train).write(documents[i]);
    train.seal();
    val.seal();  // before either is published: a full disk leaves neither
    return {.train = train.publish(), .val = val.publish()};
}

}  // namespace llmc
