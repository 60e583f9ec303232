// staged_file.h - a file that is replaced whole or not at all
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <optional>
#include <string_view>

#include "llmc/base/output_file.h"

namespace llmc {

// Writes a hidden file beside `place`, brings it to the disk and renames it. Whenever the program or the machine stops,
// `place` has its old contents or the new ones. Every function throws a run-time Error if the system refuses.
class StagedFile {
public:
    // Creates the parent folders and the hidden file.
    explicit StagedFile(const std::filesystem::path& place);
    // Removes the hidden file, unless commit() was called.
    ~StagedFile();
    StagedFile(const StagedFile&) = delete;
    StagedFile& operator=(const StagedFile&) = delete;

    void append(std::span<const std::byte> contents) { file_->append(contents); }
    // When it returns the file is on the disk under its name, in place of one that was there.
    void commit();

private:
    std::filesystem::path place_, folder_, hidden_;
    std::optional<OutputFile> file_;
};

// All of a small file. Nothing is left behind where it throws.
void write_whole(const std::filesystem::path& place, std::string_view contents);

}  // namespace llmc
