// file_status.h - the type and size of a file before it is opened, and the error for an unreadable one
#pragma once
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>

#include "kernels/base/error.h"

namespace llmc {

// A file that the system does not let this process read now: no permission, an I/O error, too many open files. Its
// contents may be valid, unlike those of a file that is missing or has the wrong contents, which is a plain Error.
class UnreadableError : public Error {
public:
    using Error::Error;
};

// Throws UnreadableError with the reason in errno, or Error if the file is missing. `what`: its name in messages,
// "shard PATH".
[[noreturn]] void fail_as_unreadable(const std::string& what, int fault = errno, Blame blame = Blame::input);
// Throws a run-time Error: "cannot write NAME: REASON; ADVICE". `what`: "cannot write NAME".
[[noreturn]] void fail_as_unwritable(const std::string& what, int fault);
// What a user can do about an errno value.
std::string advice_after(int fault);
// Whether the errno value means that the file does not exist.
bool means_missing(int fault);

// The status of a file or folder; nullopt: it is missing. Throws UnreadableError if stat() fails otherwise.
std::optional<struct stat> find_status(const std::filesystem::path& path);
bool is_present(const std::filesystem::path& path);
// Throws Error if the file is missing or a folder, or UnreadableError if stat() fails.
struct stat status_of_file(const std::string& path, const std::string& what);

// The first of NAME, NAME2, NAME3, ... that does not exist.
std::filesystem::path free_name(const std::string& name);

}  // namespace llmc
