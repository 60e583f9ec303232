// checkpoint.h - a model as a folder that transformers' GPT2LMHeadModel.from_pretrained opens. What training needs
// beside it to go on: run/checkpoint/checkpoint_writer.h
//
//   OUT/step_00000100/config.json          the size
//   OUT/step_00000100/model.safetensors    every tensor in fp32 under Hugging Face's name,
//                                          "transformer.h.0.attn.c_attn.weight": matrices as (in, out), the token table
//                                          with the real vocabulary's rows only; the tied head is not written
//
// What transformers itself or OpenAI's published checkpoints hold can be read too: F16 and BF16, names with or without
// "transformer.", the head if it equals the token table, the buffers of old versions, and several files with an index
// (safetensors_set.h). So can llm.c's models (llmc_file.h).
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "llmc/base/fingerprint.h"
#include "llmc/weights/parameters.h"

namespace llmc {

// Reading is in two steps: opening tells the size, so that the caller can allocate; read() then fills.
class Checkpoint {
public:
    // `path`: a folder with config.json and safetensors, a .safetensors file with config.json beside it, or a .bin file
    // of llm.c. Throws Error unless size and tensors are those of one GPT-2: a foreign key, a missing, superfluous or
    // mis-shaped tensor is named.
    explicit Checkpoint(const std::filesystem::path& path);
    ~Checkpoint();
    Checkpoint(Checkpoint&& other) noexcept;

    const ModelConfig& config() const;
    // The dropout that the model asks for and that this program does not apply: "attn_pdrop 0.1"; "": none.
    std::string dropout() const;
    // The id that ends a text, as config.json has it, or in llm.c's files GPT-2's; -1: not known.
    int end_of_text() const;
    // Fills a host array of table.elements() floats; rows past the vocabulary and gaps become 0. Throws Error naming
    // the tensor that holds a NaN or an infinity: no training could go on from it.
    void read(const ParameterTable& table, std::span<float> flat) const;

    class Format;

private:
    std::unique_ptr<const Format> files_;
};

// Values of one tensor of the table (padding included), valid until the next call: from a device, tensor by tensor.
using TensorSource = std::function<std::span<const float>(int tensor)>;
TensorSource from_flat(const ParameterTable& table, std::span<const float> flat);

// "OUT/step_00000100"
std::filesystem::path step_folder(const std::filesystem::path& output_dir, std::int64_t step);
// Those of an output folder, by step. None where there is no such folder.
std::map<std::int64_t, std::filesystem::path> step_folders(const std::filesystem::path& output_dir);

// The model that a path names: of a folder without config.json the newest of its checkpoints whose files can be opened,
// where it has any; of everything else the path itself. `passed_over`: newer ones, and why.
struct NewestModel {
    std::filesystem::path path;
    std::map<std::filesystem::path, std::string> passed_over;
};
NewestModel newest_model(const std::filesystem::path& path);

// Writes config.json and model.safetensors into an existing folder. `end_of_text` is the data's id for it; -1: none.
// Values are written as they are. Returns what model.safetensors has.
FileFingerprint write_model(const std::filesystem::path& folder, const ParameterTable& table,
                            const TensorSource& master_weights, int end_of_text);

}  // namespace llmc
