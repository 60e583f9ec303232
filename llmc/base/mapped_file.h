// mapped_file.h - a read-only memory mapping of a file
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "llmc/base/cut_off_guard.h"

namespace llmc {

// Owns a read-only mapping of one regular file. The file must not be truncated while it is mapped: accessing a missing
// page kills the process, unless the mapping is guarded.
class MappedFile {
public:
    MappedFile() = default;
    // `kind` names the file in messages ("shard"). Throws Error if `path` is missing or no regular file,
    // or UnreadableError (file_status.h).
    MappedFile(std::string path, std::string_view kind);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept
        : path_(std::move(other.path_)),
          data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0)),
          device_(other.device_),
          inode_(other.inode_),
          guard_(std::move(other.guard_)) {}
    MappedFile& operator=(MappedFile&& other) noexcept {
        std::swap(path_, other.path_);
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(device_, other.device_);
        std::swap(inode_, other.inode_);
        std::swap(guard_, other.guard_);
        return *this;
    }

    const std::string& path() const { return path_; }
    std::span<const std::byte> bytes() const { return {data_, size_}; }
    std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

    // From now on missing pages read as zeros. Check cut_off() after reading, before you use the data.
    void guard();
    // Whether a read returned zeros for pages that the file no longer has. No system call.
    bool pages_missing() const { return guard_.marked(); }
    // pages_missing(), or the file is shorter now: the rest of its last page reads as zeros without a signal. One
    // system call.
    bool cut_off() const;
    // Throws a run-time UnreadableError that names the file if cut_off().
    void require_whole() const;

    // Asks the operating system to read far ahead. Only a hint.
    void expect_sequential_reads() const;

private:
    std::string path_;
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::uint64_t device_ = 0, inode_ = 0;  // identify the mapped file
    CutOffGuard guard_;                     // declared last: destroyed before the mapping
};

}  // namespace llmc
