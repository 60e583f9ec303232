// model_path.h - refuses paths that are not models: names of Hugging Face's hub, and incomplete checkpoints
#pragma once
#include <filesystem>
#include <string>

namespace llmc {

// Whether the folder has the name of an incomplete checkpoint: ".step_00000010.partial".
bool is_partial_checkpoint(const std::filesystem::path& folder);

// Throws Error if the path is in such a folder, or if it does not exist and has the form of a hub name, such as "gpt2"
// or "openai-community/gpt2": this program does not download models.
void require_model_path(const std::string& path);

}  // namespace llmc
