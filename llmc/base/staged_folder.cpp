// staged_folder.cpp - the hidden folder, its fsyncs and the final rename
#include "llmc/base/staged_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/error.h"
#include "llmc/base/file_status.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refused(const std::string& action, const fs::path& path, int fault) {
    fail(action + " " + path.string(), "refused by the system (" + std::string(std::strerror(fault)) + ")", "success",
         advice_after(fault) + ", or choose another --output-dir", Blame::runtime);
}

void require_absent(const fs::path& place) {
    std::error_code fault;
    if (fs::exists(fs::symlink_status(place, fault)))
        fail(place.string(), "already present", "no file or folder of that name",
             "remove it, or choose another --output-dir", Blame::runtime);
}

void sync(const fs::path& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) refused("opening", path, errno);
    const int fault = fsync(file) == 0 ? 0 : errno;
    close(file);
    // Some file systems cannot sync a folder and report EINVAL.
    if (fault != 0 && fault != EINVAL) refused("syncing to disk", path, fault);
}

}  // namespace

fs::path StagedFolder::path_of(const fs::path& place) {
    return place.parent_path() / std::string(1, '.').append(place.filename().string()).append(".partial");
}

StagedFolder::StagedFolder(const fs::path& place) : place_(place), hidden_(path_of(place)) {
    std::error_code fault;
    if (place.has_parent_path()) fs::create_directories(place.parent_path(), fault);
    if (fault) refused("creating the folder", place.parent_path(), fault.value());
    require_absent(place_);
    fs::remove_all(hidden_, fault);
    if (fault) refused("removing", hidden_, fault.value());
    fs::create_directory(hidden_, fault);
    if (fault) refused("creating the folder", hidden_, fault.value());
}

StagedFolder::~StagedFolder() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(hidden_, ignored);
}

void StagedFolder::commit() {
    sync(hidden_);
    require_absent(place_);  // rename() itself would replace an empty folder
    std::error_code fault;
    fs::rename(hidden_, place_, fault);
    if (fault) refused("renaming to", place_, fault.value());
    committed_ = true;
    sync(place_.has_parent_path() ? place_.parent_path() : fs::path("."));
}

}  // namespace llmc
