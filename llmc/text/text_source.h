// text_source.h - reads a text file sequentially and decompresses it
//
// Decompresses NAME.gz and NAME.zst (in either case), also with several members or frames, and whatever else starts
// like such a file; "-" is standard input. Allocates the window of a zstd frame: 2 GB for zstd --long=31.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace llmc {

inline std::string name_of_text(const std::string& path) { return path == "-" ? "standard input" : path; }

class TextSource {
public:
    // Throws Error if the file is missing, a folder, unreadable, or not in the format of its name. `interrupted` is
    // called when a signal interrupts a read; the read continues unless it throws.
    explicit TextSource(const std::string& path, std::function<void()> interrupted = [] {});
    ~TextSource();

    const std::string& path() const;
    // Fills `room` from its start and returns the number of bytes, less than its size only at the end of the text.
    // Throws Error that names the file if it is damaged or truncated, or if the text starts like that of another format
    // (of an archive, if the first read has at least 262 bytes).
    std::size_t read(std::span<char> room);
    // Bytes of the file (not decompressed) read so far, and in total (0: not known, such as for a pipe).
    std::int64_t bytes_taken() const;
    std::int64_t bytes_in_all() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace llmc
