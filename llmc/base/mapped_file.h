// mapped_file.h - a file's bytes as memory, read by the kernel page by page as they are touched
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "llmc/base/cut_off_guard.h"

namespace llmc {

// Owner of a read-only mapping of one regular file. The file must keep its length while it is mapped: touching what was
// cut off kills the process, unless it is guarded.
class MappedFile {
public:
    MappedFile() = default;
    // `kind` names the file in messages ("shard"). Throws Error where `path` is missing, no regular file, or
    // unreadable.
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

    // From now on what was cut off reads as zeros. Whoever has read asks cut_off() before using what was read.
    void guard();
    // Whether zeros were read in place of pages that the file no longer has. Costs no call of the system.
    bool pages_missing() const { return guard_.marked(); }
    // The same, and also whether the file is shorter now: its last page is filled up with zeros that no signal tells
    // of. Asks the system.
    bool cut_off() const;
    // Throws a run-time Error that names the file where it is.
    void require_whole() const;

    // Asks the kernel to read far ahead of the last page touched. A hint: nothing depends on it.
    void expect_sequential_reads() const;

private:
    std::string path_;
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::uint64_t device_ = 0, inode_ = 0;  // which file the path named
    CutOffGuard guard_;                     // last: ends before the mapping
};

}  // namespace llmc
