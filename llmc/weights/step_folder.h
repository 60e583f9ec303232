// step_folder.h - the names of checkpoints in an output folder
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>

namespace llmc {

// In an output folder: a link to the checkpoint with the lowest validation loss (--keep-best).
inline constexpr const char* kBestName = "best";

// "OUT/step_00000100"
std::filesystem::path step_folder(const std::filesystem::path& output_dir, std::int64_t step);
// The step folders in an output folder, by step. Empty if the folder does not exist. Throws UnreadableError if it
// cannot be read.
std::map<std::int64_t, std::filesystem::path> step_folders(const std::filesystem::path& output_dir);
// Whether the folder has the name of an incomplete checkpoint (StagedFolder): ".step_00000010.partial".
bool is_partial_checkpoint(const std::filesystem::path& folder);

}  // namespace llmc
