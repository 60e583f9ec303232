// file_status.h - the type and size of a file before it is opened, and the error for an unreadable one
#pragma once
#include <sys/stat.h>

#include <string>

namespace llmc {

// `what`: its name in messages, "shard PATH". Throws Error if the file is missing, a folder, or stat() fails.
struct stat status_of_file(const std::string& path, const std::string& what);
// Throws Error with the reason in errno.
[[noreturn]] void fail_as_unreadable(const std::string& what);

}  // namespace llmc
