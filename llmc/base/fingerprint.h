// fingerprint.h - a hash of 16 hexadecimal digits that identifies a sequence of bytes: compares weights, shards and
// programs between ranks, and detects damaged files
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace llmc {

// XXH3, 64 bits.
std::string fingerprint(std::span<const std::byte> bytes);

struct FileFingerprint {
    std::int64_t bytes = 0;
    std::string xxh3;
    bool operator==(const FileFingerprint&) const = default;
};
// The fingerprint of bytes that arrive in parts.
class FingerprintStream {
public:
    FingerprintStream();
    void append(std::span<const std::byte> bytes);
    FileFingerprint end() const;

private:
    struct State;
    struct Delete {
        void operator()(State* state) const;
    };
    std::unique_ptr<State, Delete> state_;
    std::int64_t bytes_ = 0;
};

// Reads all of the file. Throws Error that names it if it is missing, or UnreadableError (file_status.h) if the system
// refuses. Calls `on_read` after every read with the number of bytes.
FileFingerprint fingerprint_of_file(const std::filesystem::path& file,
                                    const std::function<void(std::int64_t)>& on_read = {});

}  // namespace llmc
