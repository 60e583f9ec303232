// file_status.cpp - stat() with error messages
#include "llmc/base/file_status.h"

#include <cerrno>
#include <cstring>

#include "kernels/base/error.h"

namespace llmc {

struct stat status_of_file(const std::string& path, const std::string& what) {
    struct stat status;
    if (::stat(path.c_str(), &status) != 0) {
        if (errno == ENOENT) fail(what, "missing", "a file", "check the spelling of the path");
        fail_as_unreadable(what);
    }
    if (S_ISDIR(status.st_mode))
        fail(what, "a folder", "a file", "pass the files in it: " + path + (path.ends_with('/') ? "*" : "/*"));
    return status;
}

void fail_as_unreadable(const std::string& what) {
    fail(what, "unreadable (" + std::string(std::strerror(errno)) + ")", "a file that this user may read",
         "check its permissions");
}

}  // namespace llmc
