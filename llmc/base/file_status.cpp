// file_status.cpp - stat() with error messages
#include "llmc/base/file_status.h"

#include <cstring>

namespace llmc {

void fail_as_unreadable(const std::string& what, int fault, Blame blame) {
    const std::string unreadable = std::string("unreadable (") + std::strerror(fault) + ')';
    if (means_missing(fault))
        fail(what, fault == ENOENT ? "missing" : unreadable, "a file", "check the spelling of the path");
    throw UnreadableError(what + " is " + unreadable + "; expected one that can be read; " + advice_after(fault),
                          blame);
}

void fail_as_unwritable(const std::string& what, int fault) {
    throw Error(what + ": " + std::strerror(fault) + "; " + advice_after(fault), Blame::runtime);
}

std::string advice_after(int fault) {
    switch (fault) {
        case EACCES:
        case EPERM: return "check its permissions, and those of the folders above it";
        case ENOMEM: return "free memory, or raise the limits of this process (ulimit -v)";
        case EMFILE: return "raise this process' limit of open files (ulimit -n)";
        case ENFILE: return "the machine has too many open files: end other programs, or raise fs.file-max";
        case ENOTDIR: return "remove the file that is in the place of a folder";
        case ELOOP: return "remove the loop of symbolic links";
        case ENAMETOOLONG: return "use a shorter path";
        case ENOSPC: return "free disk space";
        case EDQUOT: return "remove files of yours, or raise your disk quota (quota)";
        case EFBIG: return "raise this process' limit of the sizes of files (ulimit -f)";
        case ENOENT: return "create its folder";
        case EROFS: return "its disk is mounted read-only: remount it, or use another";
        default: return "check its disk";
    }
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
        fail(what, "a folder", "a file",
             "pass a file in it; where several are taken, " + path + (path.ends_with('/') ? "*" : "/*"));
    return status;
}

std::filesystem::path free_name(const std::string& name) {
    std::filesystem::path free = name;
    for (int number = 2; std::filesystem::exists(std::filesystem::symlink_status(free)); ++number)
        free = name + std::to_string(number);
    return free;
}

}  // namespace llmc
