// input_file.cpp - stat, open and pread of a file, with an error message for each failure
#include "llmc/base/input_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "llmc/base/file_status.h"
#include "llmc/base/number_text.h"

namespace llmc {
namespace {

// Each shard of a data set stays open: they may be more than the usual soft limit of 1024 files.
bool raised_limit_of_files() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return false;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

}  // namespace

InputFile::InputFile(std::string path, std::string_view kind)
    : path_(std::move(path)), what_((kind.empty() ? "" : std::string(kind) + ' ') + (path_.empty() ? "\"\"" : path_)) {
    // Before open(), which would block forever on a named pipe without a writer.
    struct stat status = status_of_file(path_, what_);
    if (!S_ISREG(status.st_mode))
        fail(what_, "a device, pipe or socket", "a regular file", "copy its contents to a file");
    const auto open_file = [&] { return file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC); };
    if (open_file() < 0) {
        const int fault = errno;
        if (fault != EMFILE || !raised_limit_of_files() || open_file() < 0) fail_as_unreadable(what_, fault);
    }
    if (::fstat(file_, &status) != 0) fail_as_unreadable(what_);
    size_ = std::uint64_t(status.st_size);
}

InputFile::~InputFile() {
    if (file_ >= 0) ::close(file_);
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> out, Blame blame) const {
    for (std::size_t found = 0; found < out.size();) {
        const ssize_t got = ::pread(file_, out.data() + found, out.size() - found, off_t(offset + found));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail_as_unreadable(what_, errno, blame);
        if (got == 0)
            throw UnreadableError(what_ + " is cut off; expected " + counted(std::ssize(out), "byte") + " at offset " +
                                      std::to_string(offset) + ", found " + std::to_string(found) +
                                      "; copy or create it again, and do not change it while a program reads it",
                                  Blame::runtime);
        found += std::size_t(got);
    }
}

std::string read_text(const std::string& path, std::string_view kind) {
    const InputFile file(path, kind);
    std::string text(std::size_t(file.size()), '\0');
    file.read(0, std::as_writable_bytes(std::span(text)));
    return text;
}

}  // namespace llmc
