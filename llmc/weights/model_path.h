// model_path.h - what is given as a model and is none: a name of Hugging Face's hub, a checkpoint not written to its
// end
#pragma once
#include <filesystem>
#include <string>

namespace llmc {

// ".step_00000010.partial": what a checkpoint is called until all of it is on the disk.
bool is_partial_checkpoint(const std::filesystem::path& folder);

// Throws Error where the path is in such a folder, or where nothing lies there and it is a name of the hub, such as
// "gpt2" or "openai-community/gpt2": models are not downloaded here.
void require_model_path(const std::string& path);

}  // namespace llmc
