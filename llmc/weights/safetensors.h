// safetensors.h - files of named tensors, in Hugging Face's format
//
//   8 bytes   length of the header, little-endian
//   header    JSON, padded with spaces: {"__metadata__": {text: text},
//             NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//   data      the tensors one after the other, little-endian, row-major; offsets count from here, without holes or
//             overlap
//
// Whatever a file says is checked before it is used: a damaged one is an Error of one line that names the file, the
// tensor, what was found, what was expected and how to mend it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/mapped_file.h"
#include "llmc/base/output_file.h"

namespace llmc {

using Metadata = std::map<std::string, std::string>;

struct TensorInfo {
    std::string name, dtype;  // "F32", "BF16", ... as the file says
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;  // bytes, from the start of the data
    std::int64_t elements() const;
};
// "[2, 3]"; of more than eight extents the first eight
std::string describe_shape(const std::vector<std::int64_t>& shape);

// A file opened for reading, mapped into memory: only what is read is loaded. The file must not shrink while it is
// open.
class SafetensorsFile {
public:
    // Throws Error unless the file is whole and consistent.
    explicit SafetensorsFile(const std::filesystem::path& path);

    const std::string& path() const { return file_.path(); }
    const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of the data
    const Metadata& metadata() const { return metadata_; }
    std::span<const std::byte> bytes(const TensorInfo& tensor) const;
    // out = elements [first, first + out.size()) of a tensor of dtype F32, F16 or BF16, exactly. Throws Error for other
    // dtypes. Several threads may read at once.
    void read(const TensorInfo& tensor, std::int64_t first, std::span<float> out) const;

private:
    void parse();
    void check_extents() const;

    MappedFile file_;
    std::span<const std::byte> data_;  // what follows the header
    std::vector<TensorInfo> tensors_;
    Metadata metadata_;
};

struct TensorToWrite {
    std::string name, dtype;
    std::vector<std::int64_t> shape;
};

// Writes a file from start to end, so that no copy of the model is held: the header first, then the tensors' values in
// the order announced. Throws a run-time Error naming the file when the system refuses.
class SafetensorsWriter {
public:
    // Creates or overwrites the file.
    SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                      const Metadata& metadata);

    // The next bytes of the data; a call need not end where a tensor ends.
    void append(std::span<const std::byte> bytes);
    void append(std::span<const float> values) { append(std::as_bytes(values)); }
    // When it returns the file is complete and on the disk. Throws Error if values are missing.
    FileFingerprint finish();

private:
    std::string path_;
    OutputFile file_;
    std::uint64_t expected_ = 0, written_ = 0;  // bytes of data
};

}  // namespace llmc
