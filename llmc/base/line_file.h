// line_file.h - a log of complete lines, even if its writer is interrupted
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace llmc {

// Owns a file that is open for appending, and that no other LineFile of any process has open.
class LineFile {
public:
    // Opens the file, or creates it. Throws std::system_error with the system's reason; EWOULDBLOCK: another program
    // writes it. File systems without locks do not detect a second writer.
    explicit LineFile(const std::filesystem::path& path, bool creates = true);
    ~LineFile();
    LineFile(const LineFile&) = delete;
    LineFile& operator=(const LineFile&) = delete;

    const std::filesystem::path& path() const { return path_; }
    std::int64_t size() const;
    // Truncates the file after its last newline, which removes an incomplete line.
    void drop_half_line();
    // Writes the line and a newline, or nothing: if the disk fills up, the partial line is truncated. Throws a run-time
    // Error if the system refuses, or if the path no longer names this file: deleted or moved away, alone or with
    // its folder.
    void append(std::string_view line);
    // Whether the path now names another file or none.
    bool lost() const;

private:
    void require_in_place() const;

    std::filesystem::path path_;
    int file_ = -1;
};

}  // namespace llmc
