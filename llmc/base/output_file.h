// output_file.h - a file written from start to end, past the page cache where the file system can
//
// A checkpoint of gigabytes would push everything else out of the page cache, and copying it there takes a processor
// from training for as long as the disk is busy. Bytes gather in a small buffer, are hashed there, and go from it to
// the disk (O_DIRECT). A file system that refuses this gets ordinary writes.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "llmc/base/fingerprint.h"

namespace llmc {

// Every function throws a run-time Error that begins with "cannot create NAME" or "cannot write NAME" where the system
// refuses.
class OutputFile {
public:
    // Creates or overwrites `path`, which messages call `name`.
    OutputFile(const std::filesystem::path& path, std::string name);
    explicit OutputFile(const std::filesystem::path& path) : OutputFile(path, path.string()) {}
    ~OutputFile();  // without finish() the file is left as far as it went
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    void append(std::span<const std::byte> bytes);
    // When it returns the file is complete and on the disk.
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

}  // namespace llmc
