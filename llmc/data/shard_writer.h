// shard_writer.h - writes shards so that a half-written one is never seen under its name
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "llmc/data/shard.h"

namespace llmc {

// Writes under a temporary name in the folder of `path`; only publish() gives the file its name. What is not published
// is removed.
class ShardWriter {
public:
    // Throws Error where the vocabulary cannot be or the folder cannot be written to. An existing file stays until
    // publish() replaces it.
    ShardWriter(std::string path, Vocabulary vocabulary);
    ~ShardWriter();
    ShardWriter(ShardWriter&& other) noexcept;
    ShardWriter& operator=(ShardWriter&&) = delete;

    const std::string& path() const { return path_; }
    const std::string& temporary() const { return temporary_; }
    std::int64_t tokens() const { return tokens_; }

    // Throws Error for an id outside the vocabulary or more tokens than the header can count, a run-time Error where
    // the disk refuses.
    void append(std::span<const std::uint16_t> ids);
    // Writes the header and waits until the disk has everything; nothing can be appended after. Throws Error without a
    // token.
    void seal();
    // Seals if that is still to do, and gives the file its name: from here on it is there, whole, also after a power
    // failure. Throws a run-time Error where a file of that name is there and is not to be replaced.
    void publish(bool replaces = true);

private:
    void flush();
    void write_at_end(const void* data, std::size_t bytes);
    [[noreturn]] void refused_by_disk(const char* doing) const;

    std::string path_, temporary_;  // temporary_ is empty once published
    Vocabulary vocabulary_;
    int descriptor_ = -1;           // -1 once sealed
    std::int64_t tokens_ = 0;
    std::vector<std::uint16_t> buffer_;
};

// A stream of tokens cut into PREFIX_000000.bin, PREFIX_000001.bin, ... of `shard_tokens` each, the last one shorter.
// None has its name before all are whole. As long as it lives the first of its temporary files is locked.
class ShardSeriesWriter {
public:
    ShardSeriesWriter(std::string prefix, Vocabulary vocabulary, std::int64_t shard_tokens);
    ~ShardSeriesWriter();
    ShardSeriesWriter(const ShardSeriesWriter&) = delete;
    ShardSeriesWriter& operator=(const ShardSeriesWriter&) = delete;

    // Removes what series of that prefix have left whose process was killed: whose number no other process here has,
    // and whose lock nobody holds, here or elsewhere. None of them has published a shard. Says how many files went.
    static std::int64_t remove_left_over(const std::string& prefix);
    void append(std::span<const std::uint16_t> ids);
    std::int64_t tokens() const { return tokens_; }
    void seal();                         // the last shard too; throws Error without a token
    std::vector<std::string> publish();  // the names, in order

private:
    std::string prefix_;
    Vocabulary vocabulary_;
    std::int64_t shard_tokens_, tokens_ = 0;
    std::vector<ShardWriter> shards_;
    int locked_ = -1;
};

}  // namespace llmc
