// output_file.h - a file written sequentially, bypassing the page cache where the file system supports it
//
// A checkpoint of gigabytes would evict everything else from the page cache, and copying it there would occupy a CPU
// core that training needs until the disk is done. Bytes are collected and hashed in a small buffer and written from it
// with O_DIRECT. File systems that refuse O_DIRECT get ordinary writes.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "llmc/base/fingerprint.h"

namespace llmc {

// Every function throws a run-time Error that starts with "cannot create NAME" or "cannot write NAME" if the system
// refuses.
class OutputFile {
public:
    // Creates or overwrites `path`. Messages call it `name`.
    OutputFile(const std::filesystem::path& path, std::string name);
    explicit OutputFile(const std::filesystem::path& path) : OutputFile(path, path.string()) {}
    ~OutputFile();  // without finish() the file stays incomplete
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    void append(std::span<const std::byte> bytes);
    // On return the file is complete and on disk.
    FileFingerprint finish();

private:
    struct Free {
        void operator()(std::byte* buffer) const { std::free(buffer); }
    };
    void flush();
    [[noreturn]] void refused(const char* action) const;

    std::string name_;
    int file_ = -1;
    bool direct_ = true;
    std::unique_ptr<std::byte, Free> buffer_;  // kBufferBytes
    std::size_t gathered_ = 0;                 // bytes in it
    FingerprintStream fingerprint_;
};

// A file of these contents, complete and on disk.
FileFingerprint write_file(const std::filesystem::path& path, std::string_view contents);

}  // namespace llmc
