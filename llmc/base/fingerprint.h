// fingerprint.h - sixteen hexadecimal digits that tell one sequence of bytes from another: weights, shards and programs
// of different ranks, and a file from itself after damage
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
// Of bytes that come one stretch after the other.
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

// Reads all of the file. Throws a run-time Error that names it where the system refuses. `told`: of the bytes read,
// stretch by stretch.
FileFingerprint fingerprint_of_file(const std::filesystem::path& file,
                                    const std::function<void(std::int64_t)>& told = {});

}  // namespace llmc
