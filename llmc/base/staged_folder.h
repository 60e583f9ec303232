// staged_folder.h - a folder that appears under its name only when it is completely on disk
//
// Files that are on disk (output_file.h), and no folders, are written to a hidden folder beside the final place, which
// commit() renames. Even if the program or the machine crashes, the final folder is either absent or complete.
#pragma once
#include <filesystem>

namespace llmc {

class StagedFolder {
public:
    // Creates the parent folders and an empty hidden folder, and replaces one that a killed run left there.
    // Throws a run-time Error if `place` exists already or the system refuses.
    explicit StagedFolder(const std::filesystem::path& place);
    ~StagedFolder();  // removes the hidden folder unless commit() has returned
    StagedFolder(const StagedFolder&) = delete;
    StagedFolder& operator=(const StagedFolder&) = delete;

    const std::filesystem::path& path() const { return hidden_; }  // write the files here
    static std::filesystem::path path_of(const std::filesystem::path& place);  // the hidden folder for `place`
    // On return the folder is on disk under its final name. Throws a run-time Error as the constructor does.
    void commit();

private:
    std::filesystem::path place_, hidden_;
    bool committed_ = false;
};

}  // namespace llmc
