// fingerprint.cpp - hashes bytes in memory, and whole files
#include "llmc/base/fingerprint.h"

// g++ 12 warns of the undefined operand inside its own AVX-512 intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "llmc/base/input_file.h"
#include "llmc/base/number_text.h"

namespace llmc {
namespace {

constexpr std::size_t kReadAtOnce = std::size_t(1) << 20;

std::string digits(XXH64_hash_t hash) { return format("%016llx", static_cast<unsigned long long>(hash)); }

}  // namespace

std::string fingerprint(std::span<const std::byte> bytes) { return digits(XXH3_64bits(bytes.data(), bytes.size())); }

struct FingerprintStream::State : XXH3_state_t {};

void FingerprintStream::Delete::operator()(State* state) const { delete state; }

FingerprintStream::FingerprintStream() : state_(new State) { XXH3_64bits_reset(state_.get()); }

void FingerprintStream::append(std::span<const std::byte> bytes) {
    XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
    bytes_ += std::ssize(bytes);
}

FileFingerprint FingerprintStream::end() const { return {bytes_, digits(XXH3_64bits_digest(state_.get()))}; }

FileFingerprint fingerprint_of_file(const std::filesystem::path& file,
                                    const std::function<void(std::int64_t)>& on_read) {
    const InputFile input(file.string(), "");
    FingerprintStream stream;
    std::vector<std::byte> buffer(kReadAtOnce);
    for (std::uint64_t offset = 0; offset < input.size();) {
        const auto part = std::span(buffer).first(std::min<std::uint64_t>(kReadAtOnce, input.size() - offset));
        input.read(offset, part);
        offset += part.size();
        stream.append(part);
        if (on_read) on_read(std::ssize(part));
    }
    return stream.end();
}

}  // namespace llmc
