// file_status.cpp - stat() with error messages
#include "llmc/base/file_status.h"

#include <cstring>

namespace llmc {

void fail_as_unreadable(const std::string& what, int fault) {
    const std::string unreadable = std::string("unreadable (") + std::strerror(fault) + ')';
    if (means_missing(fault))
        fail(what, fault == ENOENT ? "missing" : unreadable, "a file", "check the spelling of the path");
    const bool no_permission = fault == EACCES || fault == EPERM;
    throw UnreadableError(what + " is " + unreadable + "; expected one that " +
                          (no_permission ? "this user may read; check its permissions"
                                         : "can be read; check its disk and the limits of this process (ulimit -a)"));
}

bool means_missing(int fault) { return fault == ENOENT || fault == ENOTDIR; }

std::optional<struct stat> find_status(const std::filesystem::path& path) {
    struct stat status;
    if (::stat(path.c_str(), &status) == 0) return status;
    if (!means_missing(errno)) fail_as_unreadable(path.string());
    return std::nullopt;
}

bool is_present(const std::filesystem::path& path) { return find_status(path).has_value(); }

struct stat status_of_file(const std::string& path, const std::string& what) {
    struct stat status;
    if (::stat(path.c_str(), &status) != 0) fail_as_unreadable(what);
    if (S_ISDIR(status.st_mode))
        fail(what, "a folder", "a file", "pass the files in it: " + path + (path.ends_with('/') ? "*" : "/*"));
    return status;
}

}  // namespace llmc
