// weight_map.cpp - the index of safetensors in several files, and a folder that has one of these files
#include "llmc/weights/safetensors_set.h"
#include "test/fuzz/target.h"

namespace {

const fuzz::Target weight_map("weight_map", [](std::string_view bytes) {
    const llmc::WeightMap files = llmc::parse_weight_map("the index", bytes);
    fuzz::must(!files.empty(), "a tensor");
    for (const auto& [tensor, file] : files)
        fuzz::must(!file.empty() && file != "." && file != ".." && file.find('/') == file.npos, "a plain file name");
    const auto index = fuzz::file_with("model.safetensors.index.json", bytes);
    fuzz::file_with("a.safetensors",
                    fuzz::safetensors_of(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})" "\nabcd"));
    const llmc::SafetensorsSet set(index.parent_path());
    fuzz::must(set.tensors().size() == 1 && files.size() == 1 && files.begin()->second == "a.safetensors",
               "the single tensor");
});

}  // namespace
