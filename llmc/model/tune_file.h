// tune_file.h - the file that stores autotuning results (kernels/tuning) between runs
//
//   {"format": "train_gpt2 choices 1",
//    "devices": {"NVIDIA H200": {"cuBLASLt 13.1.2": {"forward bf16 ...": {"taken": ..., "why": ..., "seconds": ...}}}}}
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kernels/tuning/tuned_algorithms.h"

namespace llmc {

using TunedByDevice = std::map<std::string, kernels::TunedTable>;  // by the device's name

// $XDG_CACHE_HOME/train_gpt2/choices.json, or in $HOME/.cache. Empty: neither variable is an absolute path.
std::string default_tune_file();

struct TuneFile {
    TunedByDevice tuned;
    std::string fault;  // why the file is not used; empty: it was read, or does not exist
};
// All or nothing: a damaged file, or one of another program, is not used in parts.
TuneFile read_tune_file(const std::string& path);
// Adds `new_results` to the file's current contents and replaces the file atomically. Does not replace a file that
// read_tune_file() rejects. Throws a run-time Error that says why nothing was written.
void add_to_tune_file(const std::string& path, const TunedByDevice& new_results);

nlohmann::json to_json(const kernels::TunedTable& table);
nlohmann::json to_json(const TunedByDevice& tuned);
// Throws nlohmann::json::exception for JSON that to_json() does not write.
TunedByDevice tuned_from_json(const nlohmann::json& json);

}  // namespace llmc
