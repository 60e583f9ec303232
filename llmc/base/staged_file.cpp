// staged_file.cpp - the hidden file, its fsync and the rename
#include "llmc/base/staged_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "kernels/device/error.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void not_done(const std::string& action, const fs::path& path, int fault) {
    throw Error(action + " " + path.string() + ": " + std::strerror(fault), Blame::runtime);
}

// 0, or errno.
int write_and_sync(int file, std::string_view contents) {
    while (!contents.empty()) {
        const ssize_t written = write(file, contents.data(), contents.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return errno;
        contents.remove_prefix(std::size_t(written));
    }
    return fsync(file) == 0 ? 0 : errno;
}

}  // namespace

void write_whole(const fs::path& place, std::string_view contents) {
    const fs::path folder = place.has_parent_path() ? place.parent_path() : fs::path(".");
    std::error_code refused;
    fs::create_directories(folder, refused);
    if (refused) not_done("cannot create", folder, refused.value());
    // Two programs that write at once must not share it.
    fs::path hidden = folder / ".";
    ((hidden += place.filename()) += '.') += std::to_string(getpid()) + ".partial";
    const int file = open(hidden.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) not_done("cannot create", hidden, errno);
    int fault = write_and_sync(file, contents);
    if (close(file) != 0 && fault == 0) fault = errno;
    if (fault == 0 && std::rename(hidden.c_str(), place.c_str()) != 0) fault = errno;
    if (fault != 0) {
        unlink(hidden.c_str());
        not_done("cannot write", place, fault);
    }
    // The rename itself. Some file systems cannot bring a folder to the disk: then it gets there a little later.
    if (const int parent = open(folder.c_str(), O_RDONLY | O_CLOEXEC); parent >= 0) {
        fsync(parent);
        close(parent);
    }
}

}  // namespace llmc
