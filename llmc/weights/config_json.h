// config_json.h - the size of a GPT-2 in Hugging Face's config.json
#pragma once
#include <filesystem>
#include <string>

#include "llmc/base/fingerprint.h"
#include "llmc/weights/model_config.h"

namespace llmc {

struct ConfigJson {
    ModelConfig model;
    std::string dropout{};  // which this program does not apply: "attn_pdrop 0.1, embd_pdrop 0.1"; "": none
    int end_of_text = -1;   // or the default if the key is missing; -1: not an id of this vocabulary
};

// Missing keys have the defaults of transformers' GPT2Config. Throws Error with file, key, value and the expected value
// if this program does not compute the model exactly: another activation, an untied head, an inner width other than
// 4 * n_embd, and so on.
ConfigJson read_config_json(const std::filesystem::path& file);

// Writes the keys that GPT2LMHeadModel.from_pretrained needs. `end_of_text` becomes the beginning-of-text and the
// end-of-text id; -1: none. Throws a run-time Error if the file cannot be written.
FileFingerprint write_config_json(const std::filesystem::path& file, const ModelConfig& config, int end_of_text);

}  // namespace llmc
