// line_file.cpp - opens, locks and writes a log, and truncates an incomplete line
#include "llmc/base/line_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "kernels/base/error.h"
#include "llmc/base/file_status.h"
#include "llmc/base/input_file.h"

namespace llmc {

// O_NONBLOCK: does not wait for a reader if the path names a pipe.
LineFile::LineFile(const std::filesystem::path& path, bool creates)
    : path_(path),
      file_(open(path.c_str(), O_WRONLY | (creates ? O_CREAT : 0) | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666)) {
    const bool refused = file_ < 0 || (flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK);
    if (!refused) return;
    const std::system_error reason(errno, std::generic_category());
    if (file_ >= 0) close(file_);
    throw reason;
}

LineFile::~LineFile() { close(file_); }

std::int64_t LineFile::size() const {
    struct stat status {};
    return fstat(file_, &status) == 0 ? std::int64_t(status.st_size) : 0;
}

bool LineFile::lost() const {
    struct stat ours {}, named {};
    if (fstat(file_, &ours) != 0) return false;
    if (ours.st_nlink == 0) return true;
    if (stat(path_.c_str(), &named) != 0) return errno == ENOENT || errno == ENOTDIR;  // other errors: unknown
    return ours.st_dev != named.st_dev || ours.st_ino != named.st_ino;
}

void LineFile::require_in_place() const {
    if (!lost()) return;
    fail(path_.string(), "deleted or moved away", "to stay where it is while the run writes to it",
         "leave --output-dir alone until the run has ended", Blame::runtime);
}

void LineFile::drop_half_line() {
    const auto whole = std::int64_t(read_text(path_, "log").rfind('\n') + 1);  // npos + 1 is 0
    if (whole == size() || ftruncate(file_, whole) == 0) return;
    fail("the end of " + path_.string(), "refused by the system (" + std::string(std::strerror(errno)) + ")",
         "to be truncated after its last complete line", "truncate the file", Blame::runtime);
}

void LineFile::append(std::string_view line) {
    require_in_place();
    const std::string whole = std::string(line) + '\n';
    const std::int64_t before = size();
    int fault = 0;
    for (std::size_t written = 0; fault == 0 && written < whole.size();) {
        const ssize_t count = write(file_, whole.data() + written, whole.size() - written);
        if (count > 0) written += std::size_t(count);
        else if (count == 0) fault = ENOSPC;
        else if (errno != EINTR) fault = errno;
    }
    if (fault == 0) return;
    const bool cut = ftruncate(file_, before) == 0;
    fail("writing " + path_.string(), "refused by the system (" + std::string(std::strerror(fault)) + ")",
         cut ? "a complete line to be written" : "a complete line to be written, but the file now ends with half a one",
         advice_after(fault), Blame::runtime);
}

}  // namespace llmc
