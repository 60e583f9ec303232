// text_source.h - the bytes of a text file, decompressed, from its start to its end
//
// NAME.gz and NAME.zst are decompressed, several members or frames one after the other; "-" is standard input, which is
// decompressed where it begins as those do.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace llmc {

class TextSource {
public:
    // Throws Error where the file is missing, a folder, unreadable, or not what its name says. `interrupted` is asked
    // where a signal interrupts a read, which goes on unless it throws.
    explicit TextSource(const std::string& path, std::function<void()> interrupted = [] {});
    ~TextSource();
    TextSource(TextSource&& other) noexcept;

    const std::string& path() const;
    // Fills `room` from its start; fewer bytes only where the text ends. Throws Error that names the file where it is
    // damaged or cut off.
    std::size_t read(std::span<char> room);
    // Bytes of the file itself so far, and in all (0: not known, as of a pipe).
    std::int64_t bytes_taken() const;
    std::int64_t bytes_in_all() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace llmc
