// safetensors_set.h - a model's tensors in one safetensors file or in several
//
//   FOLDER/model.safetensors                       all of them; where it is there, the others are not looked at, as in
//                                                  transformers
//   FOLDER/model.safetensors.index.json            {"weight_map": {TENSOR: FILE, ...}, "metadata": ...}
//   FOLDER/model-00001-of-00003.safetensors, ...   those that weight_map gives to this file
//
// Index and files must say the same: every tensor once, in the file that the index names, in the folder itself.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/weights/safetensors.h"

namespace llmc {

using WeightMap = std::map<std::string, std::string>;  // tensor to file
// The text of an index. Throws Error where it is no index, a tensor stands there twice, or a file is not named by its
// name alone: "../x", "a/b". `path` is for messages.
WeightMap parse_weight_map(const std::string& path, std::string_view text);

struct StoredTensor {
    const SafetensorsFile* file;  // of the set, which outlives this
    const TensorInfo* info;
};

class SafetensorsSet {
public:
    // `path`: a folder, or a file by itself. Throws Error where a file is missing, damaged or says other than the
    // index.
    explicit SafetensorsSet(const std::filesystem::path& path);

    // of the file, or of the index
    const std::string& path() const { return path_; }
    std::vector<StoredTensor> tensors() const;

private:
    void open_files(const WeightMap& weight_map);

    std::string path_;
    std::vector<SafetensorsFile> files_;
};

}  // namespace llmc
