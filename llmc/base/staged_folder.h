// staged_folder.h - a folder that appears under its name only when all of it is on the disk
//
// Files (no folders) are written to a hidden folder beside the final place; commit() brings them to the disk and
// renames the folder. Whenever the program or the machine stops, the final name is either absent or whole.
#pragma once
#include <filesystem>

namespace llmc {

class StagedFolder {
public:
    // Creates the parent folders and an empty hidden folder, after removing what a run that was killed may have left
    // there.
    // Throws a run-time Error if `place` exists already or the system refuses.
    explicit StagedFolder(const std::filesystem::path& place);
    ~StagedFolder();  // removes the hidden folder unless commit() has returned
    StagedFolder(const StagedFolder&) = delete;
    StagedFolder& operator=(const StagedFolder&) = delete;

    const std::filesystem::path& path() const { return hidden_; }  // where to write the files
    static std::filesystem::path path_of(const std::filesystem::path& place);  // where they are written for `place`
    // When it returns the folder and its files are on the disk under their final name. Throws a run-time Error as the
    // constructor does.
    void commit();

private:
    std::filesystem::path place_, hidden_;
    bool committed_ = false;
};

}  // namespace llmc
