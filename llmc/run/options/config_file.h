// config_file.h - the file of --config: options as a JSON object with // comments
//
//   // GPT-2 124M
//   { "init": "d12", "max-steps": 18865, "lr": 6e-4, "shuffle": true }
#pragma once
#include <map>
#include <string>
#include <vector>

namespace llmc {

struct Setting {
    std::string what;                 // "--lr", or "FILE: lr", for messages
    std::vector<std::string> values;  // as on a command line
};
using GivenOptions = std::map<std::string, Setting>;  // by long name without dashes

// Throws Error for a file that cannot be read or is not such an object, and for a name that is no option: the message
// has the nearest one. Values are checked where they are set.
GivenOptions read_config(const std::string& file);

}  // namespace llmc
