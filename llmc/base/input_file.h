// input_file.h - reads ranges of a regular file, or all of a small one
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"

namespace llmc {

// An open file. If another file takes its name, this one is still read.
class InputFile {
public:
    // `kind` names the file in messages ("shard"). Throws Error if `path` is missing or no regular file, or
    // UnreadableError (file_status.h). Raises this process' soft limit of open files if it is reached.
    InputFile(std::string path, std::string_view kind);
    ~InputFile();
    InputFile(InputFile&& other) noexcept
        : path_(std::move(other.path_)),
          what_(std::move(other.what_)),
          file_(std::exchange(other.file_, -1)),
          size_(other.size_) {}
    InputFile& operator=(InputFile&& other) = delete;

    const std::string& path() const { return path_; }
    std::uint64_t size() const { return size_; }  // when it was opened

    // Fills `out` with the bytes from `offset`. Thread-safe. Throws a run-time UnreadableError that names file, offset,
    // expected and found bytes if the file ends before, or one with `blame` if the system refuses.
    void read(std::uint64_t offset, std::span<std::byte> out, Blame blame = Blame::input) const;

private:
    std::string path_, what_;
    int file_ = -1;
    std::uint64_t size_ = 0;
};

// The whole file. Throws as InputFile does.
std::string read_text(const std::string& path, std::string_view kind);

}  // namespace llmc
