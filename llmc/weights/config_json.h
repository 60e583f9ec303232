// config_json.h - the size of a GPT-2 as Hugging Face's config.json says it
#pragma once
#include <filesystem>
#include <string>

#include "llmc/weights/model_config.h"

namespace llmc {

// Keys that are missing have the defaults of transformers' GPT2Config. Throws Error naming file, key, value and what
// was expected where the file is no GPT-2 that this program computes exactly: another activation, an untied head, an
// inner width other than 4 * n_embd, and so on.
ModelConfig read_config_json(const std::filesystem::path& file);

// The dropout that the file asks for and that this program does not apply: "attn_pdrop 0.1, embd_pdrop 0.1"; "": none.
std::string dropout_in_config_json(const std::filesystem::path& file);

// The end-of-text id that the file names, or the default where it names none at all; -1: none of this vocabulary.
int end_of_text_in_config_json(const std::filesystem::path& file);

// Writes what GPT2LMHeadModel.from_pretrained needs. `end_of_text` becomes the beginning-of-text and end-of-text id;
// -1: there is none. Throws a run-time Error when the file cannot be written.
void write_config_json(const std::filesystem::path& file, const ModelConfig& config, int end_of_text);

}  // namespace llmc
