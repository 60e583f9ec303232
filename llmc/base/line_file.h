// line_file.h - a log that holds whole lines, whatever stops its writer
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace llmc {

// Owner of a file that is appended to, and that no other LineFile of any process has open.
class LineFile {
public:
    // Creates the file, or opens it. Throws std::system_error with the system's reason; EWOULDBLOCK: another program
    // writes it. File systems without locks keep no one out.
    explicit LineFile(const std::filesystem::path& path);
    ~LineFile();
    LineFile(const LineFile&) = delete;
    LineFile& operator=(const LineFile&) = delete;

    const std::filesystem::path& path() const { return path_; }
    std::int64_t size() const;
    // Cuts off what follows the last end of line: a line that was not written to its end.
    void drop_half_line();
    // Writes the line and its end, or nothing: what a full disk took of it is cut off again. Throws a run-time Error if
    // the system refuses, and where the file no longer is what its path names: deleted or moved away, alone or with its
    // folder.
    void append(std::string_view line);
    // Whether the path names another file now, or none.
    bool lost() const;

private:
    void require_in_place() const;

    std::filesystem::path path_;
    int file_ = -1;
};

}  // namespace llmc
