// safetensors_set.h - a model's tensors in one or several safetensors files
//
//   FOLDER/model.safetensors                       all tensors; if it exists, the other files are ignored, as in
//                                                  transformers
//   FOLDER/model.safetensors.index.json            {"weight_map": {TENSOR: FILE, ...}, "metadata": ...}
//   FOLDER/model-00001-of-00003.safetensors, ...   the tensors that weight_map assigns to this file
//
// Index and files must agree: every tensor occurs once, in the file that the index names, in the same folder.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/weights/safetensors.h"

namespace llmc {

using WeightMap = std::map<std::string, std::string>;  // tensor to file
// Parses the text of an index. Throws Error if it is invalid, a tensor occurs twice, or a file name has a folder:
// "../x", "a/b". `path` is for messages.
WeightMap parse_weight_map(const std::string& path, std::string_view text);

struct StoredTensor {
    const SafetensorsFile* file;  // owned by the set, which must outlive this
    const TensorInfo* info;
};

class SafetensorsSet {
public:
    // `path`: a folder, or a single file. Throws Error if a file is missing, damaged or contradicts the index.
    explicit SafetensorsSet(const std::filesystem::path& path);

    const std::string& path() const { return path_; }  // of the file or the index
    std::vector<StoredTensor> tensors() const;

private:
    void open_files(const WeightMap& weight_map);

    std::string path_;
    std::vector<SafetensorsFile> files_;
};

}  // namespace llmc
