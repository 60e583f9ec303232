// output_file.cpp - the buffer, and direct and buffered writes
#include "llmc/base/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/file_status.h"

namespace llmc {
namespace {

constexpr std::size_t kBufferBytes = std::size_t(1) << 20;
constexpr std::size_t kBlockBytes = 4096;  // alignment of address, offset and size for O_DIRECT, on any common disk

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path, std::string name)
    : name_(std::move(name)),
      buffer_(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, kBufferBytes))) {
    if (!buffer_) throw std::bad_alloc();
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    file_ = open(path.c_str(), kFlags | O_DIRECT, 0666);
    direct_ = file_ >= 0;
    if (file_ < 0 && errno == EINVAL) file_ = open(path.c_str(), kFlags, 0666);
    if (file_ < 0) refused("create");
}

OutputFile::~OutputFile() {
    if (file_ >= 0) close(file_);
}

void OutputFile::append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const std::size_t count = std::min(bytes.size(), kBufferBytes - gathered_);
        std::memcpy(buffer_.get() + gathered_, bytes.data(), count);
        gathered_ += count;
        bytes = bytes.subspan(count);
        if (gathered_ == kBufferBytes) flush();
    }
}

FileFingerprint OutputFile::finish() {
    flush();
    if (fsync(file_) != 0) refused("write");
    if (close(std::exchange(file_, -1)) != 0) refused("write");
    return fingerprint_.end();
}

void OutputFile::flush() {
    fingerprint_.append({buffer_.get(), gathered_});
    for (std::size_t written = 0; written < gathered_;) {
        // A partial block is the end of the file, or the rest of a short write to a full disk.
        const std::size_t left = gathered_ - written;
        if (direct_ && (left % kBlockBytes != 0 || written % kBlockBytes != 0)) {
            direct_ = false;
            if (fcntl(file_, F_SETFL, O_WRONLY) != 0) refused("write");
        }
        const ssize_t count = write(file_, buffer_.get() + written, left);
        if (count >= 0) written += std::size_t(count);
        else if (direct_ && errno == EINVAL && fcntl(file_, F_SETFL, O_WRONLY) == 0) direct_ = false;
        else if (errno != EINTR) refused("write");
    }
    gathered_ = 0;
}

void OutputFile::refused(const char* action) const {
    fail_as_unwritable(std::string("cannot ") + action + ' ' + name_, errno);
}

FileFingerprint write_file(const std::filesystem::path& path, std::string_view contents) {
    OutputFile file(path);
    file.append(std::as_bytes(std::span(contents)));
    return file.finish();
}

}  // namespace llmc
