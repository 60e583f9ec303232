// mapped_file.cpp - stat, open and mmap of a file, with an error message for each failure
#include "llmc/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/error.h"
#include "llmc/base/file_status.h"

namespace llmc {
namespace {

struct Descriptor {
    int number;
    ~Descriptor() {
        if (number >= 0) ::close(number);
    }
};

}  // namespace

MappedFile::MappedFile(std::string path, std::string_view kind) : path_(std::move(path)) {
    const std::string what = std::string(kind) + " " + path_;
    // Before open(), which would block forever on a named pipe without a writer.
    struct stat status = status_of_file(path_, what);
    if (!S_ISREG(status.st_mode))
        fail(what, "a device, pipe or socket", "a regular file", "copy its contents to a file");

    const Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC)};
    if (file.number < 0 || ::fstat(file.number, &status) != 0) fail_as_unreadable(what);
    if (status.st_size == 0) return;  // mmap refuses a length of 0

    void* address = ::mmap(nullptr, std::size_t(status.st_size), PROT_READ, MAP_SHARED, file.number, 0);
    if (address == MAP_FAILED) fail_as_unreadable(what);
    data_ = static_cast<const std::byte*>(address);
    size_ = std::size_t(status.st_size);
    device_ = std::uint64_t(status.st_dev);
    inode_ = std::uint64_t(status.st_ino);
}

MappedFile::~MappedFile() {
    guard_ = CutOffGuard();  // before another mapping can get the address
    if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::guard() {
    if (data_) guard_ = CutOffGuard(data_, size_);
}

bool MappedFile::cut_off() const {
    if (pages_missing()) return true;
    struct stat status;
    // If the name now belongs to another file, the mapped one still exists unchanged.
    return ::stat(path_.c_str(), &status) == 0 && std::uint64_t(status.st_dev) == device_ &&
           std::uint64_t(status.st_ino) == inode_ && std::size_t(status.st_size) < size_;
}

void MappedFile::require_whole() const {
    if (cut_off())
        throw UnreadableError(path_ + " is truncated while it is read; expected an unchanged file; copy the file "
                                      "again, and start again", Blame::runtime);
}

void MappedFile::expect_sequential_reads() const {
    if (data_) ::madvise(const_cast<std::byte*>(data_), size_, MADV_SEQUENTIAL);
}

}  // namespace llmc
