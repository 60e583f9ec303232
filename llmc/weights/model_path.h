// model_path.h - refuses paths that are not models: names of Hugging Face's hub, and incomplete checkpoints
#pragma once
#include <string>

namespace llmc {

// Throws Error if the path is in an incomplete checkpoint, or if it does not exist and has the form of a hub name, such
// as "gpt2" or "openai-community/gpt2": this program does not download models.
void require_model_path(const std::string& path);
// Throws Error for a path that does not exist; it names what is a model.
[[noreturn]] void refuse_missing_model(const std::string& path);

}  // namespace llmc
