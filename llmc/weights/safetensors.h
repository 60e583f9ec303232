// safetensors.h - files of named tensors, in Hugging Face's format
//
//   8 bytes   length of the header, little-endian
//   header    JSON, padded with spaces: {"__metadata__": {text: text},
//             NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//   data      the tensors one after the other, little-endian, row-major, without gaps or overlap; offsets are relative
//             to the start of the data
//
// Everything in a file is checked before use: a damaged file causes a one-line Error with the file, the tensor, the
// value found, the value expected and how to fix it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/input_file.h"
#include "llmc/base/output_file.h"

namespace llmc {

using Metadata = std::map<std::string, std::string>;

struct TensorInfo {
    std::string name, dtype;  // dtype: "F32", "BF16", ...
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;  // bytes, from the start of the data
    std::int64_t elements() const;
};
// "[2, 3]"; shows at most eight extents
std::string describe_shape(const std::vector<std::int64_t>& shape);

// Keeps the header; the data is read from the file.
class SafetensorsFile {
public:
    // Throws Error unless the file is complete and consistent.
    explicit SafetensorsFile(const std::filesystem::path& path);

    const std::string& path() const { return file_.path(); }
    const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of the data
    const Metadata& metadata() const { return metadata_; }
    // out = the bytes of a tensor from `first`. Throws as InputFile::read().
    void read_bytes(const TensorInfo& tensor, std::uint64_t first, std::span<std::byte> out) const {
        file_.read(data_begin_ + tensor.begin + first, out);
    }
    // out = elements [first, first + out.size()) of a tensor of dtype F32, F16 or BF16, converted exactly. Throws Error
    // for other dtypes or elements, and as InputFile::read().
    void read(const TensorInfo& tensor, std::int64_t first, std::span<float> out) const;

private:
    void parse();
    void check_extents() const;

    InputFile file_;
    std::uint64_t data_begin_ = 0;  // in the file, after the header
    std::vector<TensorInfo> tensors_;
    Metadata metadata_;
};

// out = consecutive values of dtype F32, F16 or BF16, the first at byte `offset`. Throws as InputFile::read().
void read_floats(const InputFile& file, std::uint64_t offset, std::string_view dtype, std::span<float> out);

struct TensorToWrite {
    std::string name, dtype;
    std::vector<std::int64_t> shape;
};

// Writes a file sequentially, so that no copy of the model is needed: the header, then the tensors' values in its
// order. Throws a run-time Error that names the file if the system refuses.
class SafetensorsWriter {
public:
    // Creates or overwrites the file.
    SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                      const Metadata& metadata);

    // Appends the next bytes of the data; a call may end inside a tensor.
    void append(std::span<const std::byte> bytes);
    void append(std::span<const float> values) { append(std::as_bytes(values)); }
    // On return the file is complete and on disk. Throws Error if values are missing.
    FileFingerprint finish();

private:
    std::string path_;
    OutputFile file_;
    std::uint64_t expected_ = 0, written_ = 0;  // bytes of data
};

}  // namespace llmc
