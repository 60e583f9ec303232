// staged_file.cpp - the hidden file, its fsync and the rename
#include "llmc/base/staged_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "kernels/device/error.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void not_done(const std::string& action, const fs::path& path, int fault) {
    throw Error(action + " " + path.string() + ": " + std::strerror(fault), Blame::runtime);
}

}  // namespace

StagedFile::StagedFile(const fs::path& place)
    : place_(place), folder_(place.has_parent_path() ? place.parent_path() : fs::path(".")) {
    std::error_code refused;
    fs::create_directories(folder_, refused);
    if (refused) not_done("cannot create", folder_, refused.value());
    // Two programs that write at once must not share it.
    hidden_ = folder_ / ".";
    ((hidden_ += place.filename()) += '.') += std::to_string(getpid()) + ".partial";
    file_ = open(hidden_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file_ < 0) not_done("cannot create", hidden_, errno);
}

StagedFile::~StagedFile() {
    if (file_ >= 0) close(file_);
    if (!hidden_.empty()) unlink(hidden_.c_str());
}

void StagedFile::append(std::span<const std::byte> contents) {
    while (!contents.empty()) {
        const ssize_t written = write(file_, contents.data(), contents.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) not_done("cannot write", place_, errno);
        contents = contents.subspan(std::size_t(written));
    }
}

void StagedFile::commit() {
    int fault = fsync(file_) == 0 ? 0 : errno;
    if (close(std::exchange(file_, -1)) != 0 && fault == 0) fault = errno;
    if (fault == 0 && std::rename(hidden_.c_str(), place_.c_str()) != 0) fault = errno;
    if (fault != 0) not_done("cannot write", place_, fault);
    hidden_.clear();
    // The rename itself. Some file systems cannot bring a folder to the disk: then it gets there a little later.
    if (const int parent = open(folder_.c_str(), O_RDONLY | O_CLOEXEC); parent >= 0) {
        fsync(parent);
        close(parent);
    }
}

void write_whole(const fs::path& place, std::string_view contents) {
    StagedFile file(place);
    file.append(std::as_bytes(std::span(contents)));
    file.commit();
}

}  // namespace llmc
