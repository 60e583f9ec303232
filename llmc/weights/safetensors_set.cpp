// safetensors_set.cpp - opens one or several safetensors files and compares them with their index
#include "llmc/weights/safetensors_set.h"

#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/error.h"
#include "llmc/base/file_name.h"
#include "llmc/base/file_status.h"
#include "llmc/base/json_text.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAgain = "copy the folder again, or save the model again";

}  // namespace

WeightMap parse_weight_map(const std::string& path, std::string_view text) {
    const auto index = parse_json_object(path, text, kAgain);
    const auto place = index.find("weight_map");
    if (place == index.end() || !place->is_object() || place->empty())
        fail(path + ": weight_map", place == index.end() ? "missing" : excerpt(*place),
             "an object that names the file of every tensor", kAgain);
    WeightMap weight_map;
    for (const auto& [tensor, file] : place->items()) {
        if (!file.is_string() || !is_file_name(file.get_ref<const std::string&>()))
            fail(path + ": the file of tensor " + in_quotes(tensor), excerpt(file),
                 "the name of a file beside the index, without folders", "fix weight_map, or save the model again");
        weight_map[tensor] = file.get<std::string>();
    }
    return weight_map;
}

SafetensorsSet::SafetensorsSet(const fs::path& path) : path_(path.string()) {
    if (fs::is_directory(path)) {
        const fs::path whole = path / "model.safetensors", index = path / "model.safetensors.index.json";
        const bool sharded = !is_present(whole) && is_present(index);
        require(sharded || is_present(whole), "the checkpoint " + path_, "a folder without model.safetensors",
                "a folder with config.json and model.safetensors or model.safetensors.index.json",
                "pass a folder step_XXXXXXXX of an output folder, or one that save_pretrained wrote");
        path_ = (sharded ? index : whole).string();
        if (sharded) open_files(parse_weight_map(path_, read_text(path_, "the index")));
    } else {
        const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
        require(path.extension() != ".json", "the checkpoint " + path_, "not a file of tensors",
                "a folder, or a .safetensors or .bin file", "pass its folder, " + folder.string());
        require(path.filename() == "model.safetensors" || !is_present(folder / "model.safetensors.index.json"),
                "the checkpoint " + path_, "one of several files of a model", "all of them",
                "pass its folder, " + folder.string());
    }
    if (files_.empty()) files_.emplace_back(path_);
}

void SafetensorsSet::open_files(const WeightMap& weight_map) {
    const fs::path folder = fs::path(path_).parent_path();
    std::set<std::string> names;
    std::error_code none;  // ignores errors for names that no file can have
    for (const auto& [tensor, name] : weight_map)
        if (names.insert(name).second && !fs::is_regular_file(folder / name, none))
            fail(path_ + ": the file " + in_quotes(name),
                 fs::exists(folder / name, none) ? "not a regular file" : "missing",
                 "every file of weight_map beside the index", kAgain);
    std::set<std::string_view> found;
    for (const std::string& name : names) {
        const SafetensorsFile& file = files_.emplace_back(folder / name);
        for (const TensorInfo& tensor : file.tensors()) {
            const auto place = weight_map.find(tensor.name);
            const std::string what = file.path() + ": tensor " + in_quotes(tensor.name);
            require(place != weight_map.end(), what, "not in weight_map", "a tensor in the index", kAgain);
            require(place->second == name, what, "in this file",
                    "only in " + in_quotes(place->second) + " according to weight_map", kAgain);
            found.insert(place->first);
        }
    }
    for (const auto& [tensor, name] : weight_map)
        require(found.contains(tensor), path_ + ": tensor " + in_quotes(tensor), "not in " + in_quotes(name),
                "in the file that weight_map names", kAgain);
}

std::vector<StoredTensor> SafetensorsSet::tensors() const {
    std::vector<StoredTensor> all;
    for (const SafetensorsFile& file : files_)
        for (const TensorInfo& tensor : file.tensors()) all.push_back({&file, &tensor});
    return all;
}

}  // namespace llmc
