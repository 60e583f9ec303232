// llmc_file.h - a model as llm.c's model_XXXXXXXX.bin. (The namespace llmc is this program's own library.)
//
//   header    256 int32, little-endian: magic number 20240326, version, positions, vocabulary V, layers, heads,
//             channels C, padded vocabulary Vp, then zeros
//   data      of one type: fp32 in version 3, bf16 in version 5. wte (Vp, C), wpe (positions, C); then, each for all
//             layers in turn, ln_1's weight and bias, attention's QKV weight (3C, C) and bias, its projection's weight
//             (C, C) and bias, ln_2's, the MLP's (4C, C) and (C, 4C) with their biases; ln_f's weight and bias
//
// Matrices are (out, in), as in memory. Rows of wte from V on are not read; written, they are 0. Sources:
// train_gpt2.py (write_model) and train_gpt2.cu (fill_in_parameter_sizes, gpt2_write_to_checkpoint) of karpathy/llm.c
// at f1e2ace.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/types.h"
#include "llmc/base/mapped_file.h"
#include "llmc/weights/parameters.h"

namespace llmc {

// By its first bytes, whatever its name.
bool begins_as_llmc_file(const std::filesystem::path& path);

struct LlmcHeader {
    ModelConfig config;
    int padded_vocabulary;
    kernels::DType dtype;
};
// Of a whole file's bytes; `path` is for messages. Throws Error unless it is a GPT-2 of version 3 or 5, of a size that
// this program trains, with exactly the data that such a model has.
LlmcHeader parse_llmc_header(const std::string& path, std::span<const std::byte> file);

// A file opened for reading, mapped into memory. The file must not shrink while it is open.
class LlmcFile {
public:
    // Throws Error where the file is missing, or as parse_llmc_header() does.
    explicit LlmcFile(const std::filesystem::path& path);

    const std::string& path() const { return file_.path(); }
    const ParameterTable& table() const { return table_; }
    // All of a tensor of the table, without the padding of the vocabulary: rows_in_files * columns values, exactly.
    void read(int tensor, std::span<float> values) const;

private:
    MappedFile file_;
    LlmcHeader header_;
    ParameterTable table_;
    std::vector<std::uint64_t> begin_;  // of each tensor of the table, in bytes from the start of the file
};

// Writes table.elements() master weights, in bf16 rounded to nearest, ties to even. A file of that name is replaced
// when the new one is complete. Throws Error where a value is beyond the range of bf16, a run-time Error when the
// system refuses; a file that was there is as it was then.
void write_llmc_file(const std::filesystem::path& path, const ParameterTable& table, std::span<const float> flat,
                     kernels::DType dtype);

}  // namespace llmc
