// saved_model.h - a model as a folder that transformers' GPT2LMHeadModel.from_pretrained can load. The other files that
// are needed to resume training: run/checkpoint/checkpoint_writer.h
//
//   OUT/step_00000100/config.json          the size
//   OUT/step_00000100/model.safetensors    every tensor in fp32 under Hugging Face's name,
//                                          "transformer.h.0.attn.c_attn.weight": matrices as (in, out), the token table
//                                          without padding rows; the tied head is not written
//
// Files of transformers and OpenAI's published checkpoints can be read too: F16 and BF16, names with or without
// "transformer." and the prefixes of torch.compile and DDP, the head if it equals the token table, buffers of old
// versions, and several files with an index (safetensors_set.h). llm.c's models can be read as well (llmc_file.h).
#pragma once
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "llmc/weights/manifest.h"
#include "llmc/weights/parameters.h"

namespace llmc {

// Reading takes two steps: the constructor reads the size, so that the caller can allocate memory; read() fills it.
class SavedModel {
public:
    // `path`: a folder with config.json and safetensors, a .safetensors file with config.json beside it, or a .bin file
    // of llm.c. Throws Error unless the size and the tensors match and are those of a GPT-2; the message names the
    // unsupported key, or the tensor that is missing, unknown or has the wrong shape.
    explicit SavedModel(const std::filesystem::path& path);
    ~SavedModel();
    SavedModel(SavedModel&& other) noexcept;

    const ModelConfig& config() const;
    // The dropout that the model specifies, which this program does not apply: "attn_pdrop 0.1"; "": none.
    const std::string& dropout() const;
    // The end-of-text id of config.json, or GPT-2's for llm.c's files; -1: not known.
    int end_of_text() const;
    // Fills a host array of table.elements() floats; padding rows of the vocabulary and gaps become 0. Throws Error
    // that names a tensor with a NaN or an infinity: training could not start from it.
    void read(const ParameterTable& table, std::span<float> flat) const;

    class Format;

private:
    std::unique_ptr<const Format> files_;
};

// The model that a path names. For a folder without config.json: its newest checkpoint whose model can be opened and
// has the checksum in its manifest, if there is one; otherwise the path itself. `notes`: one line for each newer
// checkpoint that is damaged, and one if the model is older than its checkpoint (--outer-steps). Throws Error if the
// model of the path itself differs from the manifest beside it, and UnreadableError (file_status.h) if the system does
// not let it read a checkpoint: it might be the newest.
struct NewestModel {
    std::filesystem::path path;
    std::vector<std::string> notes;
};
NewestModel newest_model(const std::filesystem::path& path);
// Whether the path is missing; a symbolic link to nothing is not. A run may delete a checkpoint (--keep-checkpoints)
// after newest_model() has returned it: then it has saved a newer one.
bool is_deleted(const std::filesystem::path& path);

// Writes config.json and model.safetensors, of table.elements() master weights, to an existing folder. `end_of_text`:
// the end-of-text id of the data; -1: none. Does not check the values. Returns the two files' fingerprints.
Manifest write_model(const std::filesystem::path& folder, const ParameterTable& table, std::span<const float> flat,
                     int end_of_text);

}  // namespace llmc
