// config_file.cpp - reads options from JSON
#include "llmc/run/options/config_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "llmc/base/did_you_mean.h"
#include "llmc/base/input_file.h"
#include "llmc/base/json_text.h"
#include "llmc/run/options/llmc_flags.h"
#include "llmc/run/options/run_settings.h"

namespace llmc {

GivenOptions read_config(const std::string& file) {
    const nlohmann::json object =
        parse_json_object(file, read_text(file, "the file of --config"),
                          "write option names and values, such as {\"lr\": 6e-4}; --print-config prints such a file",
                          Comments::allowed);
    const nlohmann::json known = to_json(RunSettings());
    std::vector<std::string> names, flags;
    for (const auto& [name, value] : known.items()) {
        names.push_back(name);
        flags.push_back("--" + name);
    }
    GivenOptions settings;
    for (const auto& [key, value] : object.items()) {
        if (!known.contains(key)) {
            const std::string name = file + ": the name " + in_quotes(key);
            if (auto foreign = foreign_option(key, flags)) {
                if (foreign->ours.starts_with("--")) foreign->ours.erase(0, 2);  // as names are written in the file
                foreign->refuse(name);
            }
            for (const char* const word : {"config", "print-config", "help", "version"})
                require(key != word, name, "no option of a run", "the long name of another flag", "remove it");
            fail(name, "unknown", "the long name of a flag in train_gpt2 --help", did_you_mean(key, names));
        }
        const std::string what = file + ": " + key;
        settings[key] = {what, values_of_setting(what, value)};
    }
    return settings;
}

}  // namespace llmc
