// shard_writer.h - writes shards so that an incomplete one never appears under its final name
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "llmc/data/shard.h"

namespace llmc {

// Writes under a temporary name in the folder of `path`; publish() renames the file. The destructor removes an
// unpublished file.
class ShardWriter {
public:
    // Throws Error if the vocabulary is invalid or the folder cannot be written to. An existing file stays until
    // publish() replaces it.
    ShardWriter(std::string path, Vocabulary vocabulary);
    ~ShardWriter();
    ShardWriter(ShardWriter&& other) noexcept;
    ShardWriter& operator=(ShardWriter&&) = delete;

    const std::string& path() const { return path_; }
    const std::string& temporary() const { return temporary_; }
    std::int64_t tokens() const { return tokens_; }

    // Throws Error for an id outside the vocabulary or more tokens than the header can count, and a run-time Error if
    // the system refuses the write.
    void append(std::span<const std::uint16_t> ids);
    // Writes the header and syncs the file to disk; append() is no longer possible. Throws Error if there is no token.
    void seal();
    // Calls seal() if necessary and renames the file: it is then complete under its name, also after a power failure.
    // Throws a run-time Error if a file of that name exists and `replaces` is false.
    void publish(bool replaces = true);

private:
    void flush();
    void write_at_end(const void* data, std::size_t bytes);
    [[noreturn]] void refused_by_disk(const char* doing) const;

    std::string path_, temporary_;  // temporary_ is empty after publish()
    Vocabulary vocabulary_;
    int descriptor_ = -1;           // -1 after seal()
    std::int64_t tokens_ = 0;
    std::vector<std::uint16_t> buffer_;
};

// Writes a stream of tokens to PREFIX_000000.bin, PREFIX_000001.bin, ... of `shard_tokens` each, the last one shorter.
// No file gets its final name before all are complete, and ShardSet refuses the series until all have theirs. Holds a
// lock on its first temporary file.
class ShardSeriesWriter {
public:
    ShardSeriesWriter(std::string prefix, Vocabulary vocabulary, std::int64_t shard_tokens);
    ~ShardSeriesWriter();
    ShardSeriesWriter(const ShardSeriesWriter&) = delete;
    ShardSeriesWriter& operator=(const ShardSeriesWriter&) = delete;

    // Removes the temporary files of killed writers of that prefix: no process here or on another host holds their
    // lock. Returns the number of removed files; throws Error if others remain. Only for a prefix without shards:
    // ShardSet accepts those of a killed writer when its temporary files are gone.
    static std::int64_t remove_left_over(const std::string& prefix);
    void append(std::span<const std::uint16_t> ids);
    std::int64_t tokens() const { return tokens_; }
    void seal();                         // also seals the last shard; throws Error if there is no token
    std::vector<std::string> publish();  // returns the names, in order; if it throws, none has its final name
    void withdraw();                     // removes published shards

private:
    std::string prefix_;
    Vocabulary vocabulary_;
    std::int64_t shard_tokens_, tokens_ = 0;
    std::vector<ShardWriter> shards_;
    int locked_ = -1;
};

}  // namespace llmc
