// mapped_file.h - a file's bytes as memory, read by the kernel page by page as they are touched
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace llmc {

// Owner of a read-only mapping of one regular file. The file must keep its length while it is mapped: touching what was
// cut off kills the process.
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
          size_(std::exchange(other.size_, 0)) {}
    MappedFile& operator=(MappedFile&& other) noexcept {
        std::swap(path_, other.path_);
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }

    const std::string& path() const { return path_; }
    std::span<const std::byte> bytes() const { return {data_, size_}; }
    std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

    // Asks the kernel to read far ahead of the last page touched. A hint: nothing depends on it.
    void expect_sequential_reads() const;

private:
    std::string path_;
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace llmc
