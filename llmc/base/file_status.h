// file_status.h - what a path names, before it is opened, and the words for what cannot be read
#pragma once
#include <sys/stat.h>

#include <string>

namespace llmc {

// `what`: its name in messages, "shard PATH". Throws Error where there is none, it is a folder, or the system refuses.
struct stat status_of_file(const std::string& path, const std::string& what);
// By errno.
[[noreturn]] void fail_as_unreadable(const std::string& what);

}  // namespace llmc
