// llmc_file.cpp - reads and writes llm.c's model files: order of tensors, header
#include "llmc/weights/llmc_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"
#include "llmc/base/staged_file.h"
#include "llmc/weights/safetensors.h"

namespace llmc {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so is the code below");

using kernels::DType;

constexpr std::size_t kHeaderWords = 256;
constexpr std::int32_t kModelMagic = 20240326;
constexpr std::int32_t kVersionFp32 = 3, kVersionBf16 = 5;
constexpr int kMaxVocabulary = 1 << 24;  // the limit of check(): sizes stay below 2^63
// Values converted at a time.
constexpr std::size_t kPiece = 1 << 16;

// Other files that may be mistaken for a model.
constexpr std::array<std::pair<std::int32_t, const char*>, 8> kOtherFiles{{
    {20240520, "this is a token shard: pass it to --train-data"},
    {20240522, "this is a set of questions for evaluation: pass a model_XXXXXXXX.bin"},
    {20240801, "this is a token shard of Llama 3: pass a model_XXXXXXXX.bin of a GPT-2"},
    {20240327, "this is the state for llm.c's tests: pass the model's .bin beside it"},
    {20240328, "this is a tokenizer: pass a model_XXXXXXXX.bin"},
    {20240527, "this is the optimizer's state of an llm.c run: pass the model_XXXXXXXX.bin beside it"},
    {20240803, "this is a Llama 3: only a GPT-2 can be trained here"},
    {0x04034b50, "this is a zip file of PyTorch: save the model with save_pretrained, as safetensors"},
}};

std::size_t bytes_of(DType dtype) { return dtype == DType::fp32 ? 4 : 2; }

// Tensors of the table in the file's order: each tensor of a block for all layers.
std::vector<int> file_order(const ParameterTable& table) {
    std::vector<int> order{table.token_table(), table.position_table()};
    for (int i = 0; i < table.block(0).tensors(); ++i)
        for (int layer = 0; layer < table.config().layers; ++layer)
            order.push_back(table.block(layer).first_tensor() + i);
    order.push_back(table.final_ln().weight);
    order.push_back(table.final_ln().bias);
    return order;
}

// The configuration must have passed check(), so that no product overflows.
std::uint64_t file_bytes(const ModelConfig& config, int padded_vocabulary, DType dtype) {
    const auto layers = std::uint64_t(config.layers), channels = std::uint64_t(config.channels);
    const auto rows = std::uint64_t(padded_vocabulary) + std::uint64_t(config.max_seq_len);
    const std::uint64_t block = 12 * channels * channels + 13 * channels;
    return 4 * kHeaderWords + bytes_of(dtype) * (rows * channels + layers * block + 2 * channels);
}

}  // namespace

bool begins_as_llmc_file(const std::filesystem::path& path) {
    std::int32_t magic = 0;
    if (!std::filesystem::is_regular_file(path)) return false;  // opening a pipe would block
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&magic), sizeof magic);
    return magic == kModelMagic;
}

LlmcFile::Header LlmcFile::read_header(const InputFile& file) {
    const std::string& path = file.path();
    std::array<std::int32_t, kHeaderWords> words{};
    file.read(0, std::as_writable_bytes(std::span(words)).first(std::min<std::uint64_t>(file.size(), sizeof words)));
    const auto other = std::find_if(kOtherFiles.begin(), kOtherFiles.end(),
                                    [&](const auto& entry) { return entry.first == words[0]; });
    const bool known = other != kOtherFiles.end();
    require(file.size() >= sizeof words || known, path + ": the size", counted(std::int64_t(file.size()), "byte"),
            "at least the " + std::to_string(sizeof words) + " bytes of llm.c's header", "copy the file again");
    require(words[0] == kModelMagic, path + ": the magic number", words[0],
            std::to_string(kModelMagic) + ", that of llm.c's models",
            known ? other->second : "pass a model_XXXXXXXX.bin of llm.c, or a folder that save_pretrained wrote");
    require(words[1] == kVersionFp32 || words[1] == kVersionBf16, path + ": the version", words[1],
            "3 (fp32) or 5 (bf16), both with a padded vocabulary",
            "write the model with a later llm.c: versions before 3, and 4, are obsolete");

    Header header{.config = {.layers = words[4], .heads = words[5], .channels = words[6],
                             .max_seq_len = words[2], .vocabulary = words[3]},
                  .padded_vocabulary = words[7],
                  .dtype = words[1] == kVersionFp32 ? DType::fp32 : DType::bf16};
    try {
        check(header.config);
    } catch (const Error& error) {
        throw Error(path + ": " + error.what(), error.blame());
    }
    require(header.padded_vocabulary >= header.config.vocabulary && header.padded_vocabulary <= kMaxVocabulary,
            path + ": the padded vocabulary", header.padded_vocabulary,
            "between the vocabulary of " + std::to_string(header.config.vocabulary) + " and " +
                std::to_string(kMaxVocabulary),
            "the header is damaged: copy the file again");
    const std::uint64_t expected = file_bytes(header.config, header.padded_vocabulary, header.dtype);
    require(file.size() == expected, path + ": the size", counted(std::int64_t(file.size()), "byte"),
            std::to_string(expected) + " bytes for " + describe(header.config) + ", padded to " +
                std::to_string(header.padded_vocabulary) + ", in " +
                (header.dtype == DType::fp32 ? "fp32" : "bf16"),
            file.size() < expected ? "the file is cut off: copy it again" : "the file is damaged: copy it again");
    return header;
}

LlmcFile::LlmcFile(const std::filesystem::path& path)
    : file_(path.string(), "llm.c's model"),
      header_(read_header(file_)),
      table_(header_.config),
      begin_(table_.tensors().size()) {
    std::uint64_t end = 4 * kHeaderWords;
    for (const int tensor : file_order(table_)) {
        const ParameterSpec& spec = table_.tensors()[std::size_t(tensor)];
        const std::int64_t rows = tensor == table_.token_table() ? header_.padded_vocabulary : spec.rows;
        begin_[std::size_t(tensor)] = end;
        end += bytes_of(header_.dtype) * std::uint64_t(rows * spec.columns);
    }
    require(end == file_.size(), "the sum of llm.c's tensors", end, std::to_string(file_.size()));
}

void LlmcFile::read(int tensor, std::span<float> values) const {
    const ParameterSpec& spec = table_.tensors().at(std::size_t(tensor));
    require(std::int64_t(values.size()) == spec.rows_in_files * spec.columns, "the length of " + spec.name,
            values.size(), std::to_string(spec.rows_in_files * spec.columns));
    read_floats(file_, begin_[std::size_t(tensor)], header_.dtype == DType::fp32 ? "F32" : "BF16", values);
}

void write_llmc_file(const std::filesystem::path& path, const ParameterTable& table, std::span<const float> flat,
                     DType dtype) {
    require(std::int64_t(flat.size()) == table.elements(), "the length of the array to export", flat.size(),
            std::to_string(table.elements()));
    const ModelConfig& config = table.config();
    const std::array<std::int32_t, kHeaderWords> words{
        kModelMagic, dtype == DType::fp32 ? kVersionFp32 : kVersionBf16, config.max_seq_len, config.vocabulary,
        config.layers, config.heads, config.channels, config.padded_vocabulary()};
    StagedFile file(path);
    file.append(std::as_bytes(std::span(words)));
    std::vector<kernels::bf16> narrow(kPiece);
    for (const int tensor : file_order(table)) {
        auto values = table.view(flat, tensor);
        if (dtype == DType::fp32) {
            file.append(std::as_bytes(values));
            continue;
        }
        for (; !values.empty(); values = values.subspan(std::min(kPiece, values.size()))) {
            const auto piece = values.first(std::min(kPiece, values.size()));
            std::transform(piece.begin(), piece.end(), narrow.begin(), kernels::bf16_from_float);
            for (std::size_t i = 0; i < piece.size(); ++i)
                if (std::isfinite(piece[i]) && !std::isfinite(kernels::bf16_to_float(narrow[i])))
                    fail("a value of " + table.tensors()[std::size_t(tensor)].name, piece[i],
                         "at most 3.3895e38, the largest bf16", "export in fp32");
            file.append(std::as_bytes(std::span(narrow).first(piece.size())));
        }
    }
    file.commit();
}

}  // namespace llmc
