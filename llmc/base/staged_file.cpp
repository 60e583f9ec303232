// staged_file.cpp - the hidden file, its fsync and the rename
#include "llmc/base/staged_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "llmc/base/file_status.h"

namespace fs = std::filesystem;

namespace llmc {

StagedFile::StagedFile(const fs::path& place)
    : place_(place), folder_(place.has_parent_path() ? place.parent_path() : fs::path(".")) {
    std::error_code refused;
    fs::create_directories(folder_, refused);
    if (refused) fail_as_unwritable("cannot create " + folder_.string(), refused.value());
    // The process id keeps concurrent writers apart.
    hidden_ = folder_ / ".";
    ((hidden_ += place.filename()) += '.') += std::to_string(getpid()) + ".partial";
    file_.emplace(hidden_, place_.string());
}

StagedFile::~StagedFile() {
    if (!hidden_.empty()) unlink(hidden_.c_str());
}

void StagedFile::commit() {
    file_->finish();
    if (std::rename(hidden_.c_str(), place_.c_str()) != 0) fail_as_unwritable("cannot write " + place_.string(), errno);
    hidden_.clear();
    // Flushes the rename. Some file systems cannot sync a folder: then the rename reaches the disk a little later.
    if (const int parent = open(folder_.c_str(), O_RDONLY | O_CLOEXEC); parent >= 0) {
        fsync(parent);
        close(parent);
    }
}

void write_whole(const fs::path& place, std::string_view contents) {
    StagedFile file(place);
    file.append(std::as_bytes(std::span(contents)));
    file.commit();
}

}  // namespace llmc
