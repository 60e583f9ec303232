// model_path.h - the flags of the model; refuses paths that are not models: names of Hugging Face's hub, and incomplete
// checkpoints
#pragma once
#include <string>

#include "llmc/base/option.h"

namespace llmc {

struct ModelSettings {
    std::string init = "d12";  // a name of model_config.h, or a path
    std::string merges{};      // file; empty: found automatically
    bool allow_larger_vocabulary = false;
};
void add_options(OptionList& list, ModelSettings& settings);

// Throws Error if the path is in an incomplete checkpoint, or if it does not exist and has the form of a hub name, such
// as "gpt2" or "openai-community/gpt2": this program does not download models.
void require_model_path(const std::string& path);
// Throws Error for a path that does not exist; it names what is a model.
[[noreturn]] void refuse_missing_model(const std::string& path);

}  // namespace llmc
