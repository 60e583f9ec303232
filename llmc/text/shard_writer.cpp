// shard_writer.cpp - writes shards through a buffer under temporary names, syncs them in seal(), renames in publish()
#include "llmc/text/shard_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/file_status.h"
#include "llmc/base/number_text.h"

namespace llmc {
namespace {

// writes of one megabyte, to avoid a system call per short document
constexpr std::size_t kBufferTokens = 1 << 19;

namespace fs = std::filesystem;

// Locks a file until the returned descriptor is closed; -1: another process has locked it, or it cannot be locked. Open
// for writing, without which NFS locks nothing.
int locked(const fs::path& file) {
    const int descriptor = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0 || ::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return descriptor;
    ::close(descriptor);
    return -1;
}

}  // namespace

ShardWriter::ShardWriter(std::string path, Vocabulary vocabulary)
    : path_(std::move(path)), temporary_(path_ + ".partial-" + std::to_string(::getpid())), vocabulary_(vocabulary) {
    require(vocabulary.size >= 1 && vocabulary.size <= kLargestVocabulary, "vocabulary size of a shard",
            vocabulary.size, "1 to 65536");
    require(vocabulary.end_of_text >= 0 && vocabulary.end_of_text < vocabulary.size, "end-of-text id of a shard",
            vocabulary.end_of_text, "0 to " + std::to_string(vocabulary.size - 1));
    // O_EXCL: in containers several processes may have the same id.
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno == EEXIST)
        fail("shard " + path_, "being written: " + temporary_ + " exists", "one writer per shard",
             "wait for the other writer to end, or remove that file if there is none", Blame::runtime);
    if (const int fault = errno; descriptor_ < 0)
        fail("shard " + path_, "not writable (" + std::string(std::strerror(fault)) + ")",
             "a file in a folder that this user may write to", advice_after(fault));
    // The destructor does not run if the constructor throws, so the file is removed here.
    try {
        buffer_.reserve(kBufferTokens);
        const std::array<std::int32_t, kShardHeaderWords> room{};
        write_at_end(room.data(), sizeof room);
    } catch (...) {
        ::close(descriptor_);
        ::unlink(temporary_.c_str());
        throw;
    }
}

ShardWriter::ShardWriter(ShardWriter&& other) noexcept
    : path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, {})), vocabulary_(other.vocabulary_),
      descriptor_(std::exchange(other.descriptor_, -1)), tokens_(other.tokens_), buffer_(std::move(other.buffer_)) {}

ShardWriter::~ShardWriter() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void ShardWriter::refused_by_disk(const char* doing) const {
    const int fault = errno;
    fail(std::string(doing) + " " + path_, "refused by the system (" + std::string(std::strerror(fault)) + ")",
         "success", advice_after(fault), Blame::runtime);
}

void ShardWriter::write_at_end(const void* data, std::size_t bytes) {
    for (auto next = static_cast<const char*>(data); bytes > 0;) {
        const ssize_t written = ::write(descriptor_, next, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) refused_by_disk("writing shard");
        next += written;
        bytes -= std::size_t(written);
    }
}

void ShardWriter::flush() {
    write_at_end(buffer_.data(), buffer_.size() * sizeof(std::uint16_t));
    buffer_.clear();
}

void ShardWriter::append(std::span<const std::uint16_t> ids) {
    if (descriptor_ < 0) fail("shard " + path_, "sealed", "a shard that is still open for writing");
    const auto bad = std::find_if(ids.begin(), ids.end(), [&](std::uint16_t id) { return id >= vocabulary_.size; });
    if (bad != ids.end())
        fail("shard " + path_ + ": id of a token to write", *bad,
             "less than its vocabulary of " + std::to_string(vocabulary_.size));
    const std::int64_t tokens = tokens_ + std::int64_t(ids.size());
    if (tokens > std::numeric_limits<std::int32_t>::max())
        fail("shard " + path_ + ": number of tokens", tokens, "at most 2147483647, the limit of its header",
             "write several shards");
    tokens_ = tokens;
    if (buffer_.size() + ids.size() > kBufferTokens) flush();
    if (ids.size() > kBufferTokens) write_at_end(ids.data(), ids.size_bytes());
    else buffer_.insert(buffer_.end(), ids.begin(), ids.end());
}

void ShardWriter::seal() {
    if (descriptor_ < 0) return;
    require(tokens_ > 0, "shard " + path_ + ": number of tokens", tokens_, "at least 1");
    flush();
    const std::array<std::int32_t, 6> header = {kShardMagic,      kShardVersion,           std::int32_t(tokens_),
                                                vocabulary_.size, vocabulary_.end_of_text, vocabulary_.merges};
    if (::pwrite(descriptor_, header.data(), sizeof header, 0) != ssize_t(sizeof header) || ::fsync(descriptor_) != 0)
        refused_by_disk("writing shard");
    buffer_ = {};  // frees memory: a long series holds many sealed writers
    const int descriptor = std::exchange(descriptor_, -1);
    if (::close(descriptor) != 0) refused_by_disk("closing shard");
}

void ShardWriter::publish(bool replaces) {
    seal();
    if (temporary_.empty()) return;
    if (!replaces && ::link(temporary_.c_str(), path_.c_str()) == 0) {
        ::unlink(temporary_.c_str());
    } else if (!replaces && errno == EEXIST) {
        fail("shard " + path_, "already present", "no file of that name",
             "another program has written it: choose another name or folder", Blame::runtime);
    } else if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {  // also if the file system has no hard links
        refused_by_disk("renaming shard");
    }
    temporary_.clear();
    // The new name is stored in the folder, which must be synced too. File systems that cannot sync folders return
    // EINVAL, which is ignored.
    const auto parent = std::filesystem::path(path_).parent_path();
    const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    const bool failed = ::fsync(folder) != 0 && errno != EINVAL;
    ::close(folder);
    if (failed) refused_by_disk("syncing the folder of shard");
}

ShardSeriesWriter::ShardSeriesWriter(std::string prefix, Vocabulary vocabulary, std::int64_t shard_tokens)
    : prefix_(std::move(prefix)), vocabulary_(vocabulary), shard_tokens_(shard_tokens) {
    require(shard_tokens >= 1 && shard_tokens <= std::numeric_limits<std::int32_t>::max(), "tokens per shard",
            shard_tokens, "1 to 2147483647");
}

ShardSeriesWriter::~ShardSeriesWriter() {
    if (locked_ >= 0) ::close(locked_);
}

std::int64_t ShardSeriesWriter::remove_left_over(const std::string& prefix) {
    const fs::path folder = fs::path(prefix).parent_path();
    const std::string series = fs::path(prefix).filename().string();
    std::map<std::string, std::vector<fs::path>> files;  // by the end of their names, the process id of the writer
    std::error_code fault;
    for (fs::directory_iterator entry(folder.empty() ? "." : folder, fault), end; !fault && entry != end;
         entry.increment(fault)) {
        const std::string name = entry->path().filename().string();
        if (const auto mark = name.find(kTemporaryShard); mark != name.npos && series_of(name) == series)
            files[name.substr(mark + kTemporaryShard.size())].push_back(entry->path());
    }
    std::int64_t removed = 0;
    for (auto& [writer, left] : files) {
        const fs::path& first = *std::ranges::min_element(left);
        // A process may have the id of a killed one. A running one holds its lock, or has published the first shard.
        const bool ours = writer.find_first_not_of("0123456789") == writer.npos &&
                          fs::is_regular_file(fs::symlink_status(first, fault)) &&
                          !fs::exists(prefix + "_000000.bin", fault);
        const int lock = ours ? locked(first) : -1;
        require(lock >= 0, "the set of shards " + in_quotes(prefix + "_*.bin"), "incomplete: " +
                in_quotes(first.string()) + " is being written, or its writer was killed", "one writer per set",
                "wait for its writer; if none runs, remove " + in_quotes(prefix + "_*.bin.partial-" + writer));
        for (const fs::path& file : left) removed += fs::remove(file, fault);
        ::close(lock);
    }
    return removed;
}

void ShardSeriesWriter::append(std::span<const std::uint16_t> ids) {
    while (!ids.empty()) {
        if (shards_.empty() || shards_.back().tokens() == shard_tokens_) {
            if (!shards_.empty()) shards_.back().seal();  // closes its file descriptor
            shards_.emplace_back(prefix_ + format("_%06d.bin", int(shards_.size())), vocabulary_);
            if (shards_.size() == 1) locked_ = locked(shards_.back().temporary());
        }
        const auto take = std::size_t(std::min<std::int64_t>(std::int64_t(ids.size()),
                                                             shard_tokens_ - shards_.back().tokens()));
        shards_.back().append(ids.first(take));
        tokens_ += std::int64_t(take);
        ids = ids.subspan(take);
    }
}

void ShardSeriesWriter::seal() {
    require(tokens_ > 0, "number of tokens for " + prefix_ + "_*.bin", tokens_, "at least 1");
    shards_.back().seal();
}

std::vector<std::string> ShardSeriesWriter::publish() {
    seal();
    std::vector<std::string> names;
    try {
        for (ShardWriter& shard : shards_) {
            shard.publish(false);
            names.push_back(shard.path());
        }
    } catch (...) {
        withdraw();
        throw;
    }
    return names;
}

void ShardSeriesWriter::withdraw() {
    for (const ShardWriter& shard : shards_)
        if (shard.temporary().empty()) ::unlink(shard.path().c_str());
}

}  // namespace llmc
