// llmc_file.h - reads and writes llm.c's model_XXXXXXXX.bin. (The namespace llmc is this program's own library.)
//
//   header    256 int32, little-endian: magic number 20240326, version, positions, vocabulary V, layers, heads,
//             channels C, padded vocabulary Vp, then zeros
//   data      of one type: fp32 in version 3, bf16 in version 5. wte (Vp, C), wpe (positions, C); then each of these
//             for all layers: ln_1's weight and bias, attention's QKV weight (3C, C) and bias, its projection's weight
//             (C, C) and bias, ln_2's weight and bias, the MLP's (4C, C) and (C, 4C) with their biases; then ln_f's
//             weight and bias
//
// Matrices are (out, in), as in memory. Padding rows of wte are not read, and are written as 0. Sources: train_gpt2.py
// (write_model) and train_gpt2.cu (fill_in_parameter_sizes, gpt2_write_to_checkpoint) of karpathy/llm.c at f1e2ace.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/types.h"
#include "llmc/base/input_file.h"
#include "llmc/weights/parameters.h"

namespace llmc {

// Whether the file starts with the magic number of llm.c's models; the name does not matter.
bool begins_as_llmc_file(const std::filesystem::path& path);

class LlmcFile {
public:
    // Throws Error unless the file is a GPT-2 of version 3 or 5, of a size that this program trains, with the exact
    // length for that size.
    explicit LlmcFile(const std::filesystem::path& path);

    const std::string& path() const { return file_.path(); }
    const ParameterTable& table() const { return table_; }
    // Reads a whole tensor of the table, without padding rows: rows_in_files * columns values, converted exactly.
    void read(int tensor, std::span<float> values) const;

private:
    struct Header {
        ModelConfig config;
        int padded_vocabulary;
        kernels::DType dtype;
    };
    static Header read_header(const InputFile& file);

    InputFile file_;
    Header header_;
    ParameterTable table_;
    std::vector<std::uint64_t> begin_;  // the offset of each tensor of the table, in bytes from the start of the file
};

// Writes table.elements() master weights; bf16 is rounded to nearest, ties to even. Replaces an existing file
// atomically. Throws Error if a value is beyond the range of bf16, and a run-time Error if the system refuses; an
// existing file is unchanged in both cases.
void write_llmc_file(const std::filesystem::path& path, const ParameterTable& table, std::span<const float> flat,
                     kernels::DType dtype);

}  // namespace llmc
