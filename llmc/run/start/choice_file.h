// choice_file.h - the file in which choices by time (kernels/tuning) outlive a run
//
//   {"format": "train_gpt2 choices 1",
//    "devices": {"NVIDIA H200": {"cuBLASLt 13.1.2": {"forward bf16 ...": {"taken": ..., "why": ..., "seconds": ...}}}}}
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kernels/tuning/choices.h"

namespace llmc {

using ChoicesByDevice = std::map<std::string, kernels::ChoiceTable>;  // by the device's name

// $XDG_CACHE_HOME/train_gpt2/choices.json, or below $HOME/.cache. Empty: neither variable is an absolute path.
std::string default_choice_file();

struct ChoiceFile {
    ChoicesByDevice choices;
    std::string fault;  // why nothing of it is used; empty: it was read, or is not there
};
// All of it or nothing: a file of another program or one that is damaged is not trusted in parts.
ChoiceFile read_choices(const std::string& path);
// Adds `news` to what the file has by now; whole or not at all. Leaves alone a file that read_choices() finds fault
// with. Throws a run-time Error that says why nothing was written.
void add_choices(const std::string& path, const ChoicesByDevice& news);

nlohmann::json to_json(const kernels::ChoiceTable& table);
nlohmann::json to_json(const ChoicesByDevice& choices);
// Throws nlohmann::json::exception for what to_json() does not give.
ChoicesByDevice choices_from_json(const nlohmann::json& json);

}  // namespace llmc
