// staged_file.h - replaces a file atomically
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <optional>
#include <string_view>

#include "llmc/base/output_file.h"

namespace llmc {

// Writes a hidden file beside `place`, syncs it to disk and renames it. Even if the program or the machine crashes,
// `place` has either its old or its new contents. Every function throws a run-time Error if the system refuses.
class StagedFile {
public:
    // Creates the parent folders and the hidden file.
    explicit StagedFile(const std::filesystem::path& place);
    // Removes the hidden file, unless commit() was called.
    ~StagedFile();
    StagedFile(const StagedFile&) = delete;
    StagedFile& operator=(const StagedFile&) = delete;

    void append(std::span<const std::byte> contents) { file_->append(contents); }
    // On return the file is on disk under its name and has replaced any previous one.
    void commit();

private:
    std::filesystem::path place_, folder_, hidden_;
    std::optional<OutputFile> file_;
};

// Writes a small file in one call. Leaves nothing behind if it throws.
void write_whole(const std::filesystem::path& place, std::string_view contents);

}  // namespace llmc
