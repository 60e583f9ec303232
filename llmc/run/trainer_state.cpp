// trainer_state.cpp - the state as JSON; numbers are written so that they read back the same
#include "llmc/run/trainer_state.h"

#include "kernels/device/error.h"
#include "llmc/base/json_text.h"
#include "llmc/base/mapped_file.h"
#include "llmc/base/staged_file.h"

namespace llmc {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LoaderPosition, epoch, row)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NoiseAverages, count, signal, noise, signal_squared, noise_squared, product)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Optimizer::Counts, updates, skipped_steps)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Fact, name, value)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainerState, step, optimizer, failed_in_a_row, data, noise, step_tokens, ranks,
                                   moment_files, options, training_data)

namespace {

constexpr const char* kName = "trainer_state.json";
constexpr int kFormat = 1;

}  // namespace

void write_trainer_state(const std::filesystem::path& folder, const TrainerState& state) {
    nlohmann::json json = state;
    json["format"] = kFormat;
    write_whole(folder / kName, text_of(json, 2) + '\n');
}

TrainerState read_trainer_state(const std::filesystem::path& folder) {
    const std::filesystem::path file = folder / kName;
    require(std::filesystem::exists(file), "the checkpoint " + folder.string(), std::string("without ") + kName,
            "one that this program wrote", "start a new run from a model alone by --init");
    const nlohmann::json json = parse_json(MappedFile(file.string(), "a checkpoint's state").text());
    const bool known = json.is_object() && json.contains("format") && json["format"] == kFormat;
    require(known, file.string() + ": the format",
            json.is_object() && json.contains("format") ? excerpt(json["format"]) : "none", std::to_string(kFormat),
            "go on with the version of this program that wrote it");
    try {
        return json.get<TrainerState>();
    } catch (const nlohmann::json::exception& error) {
        throw Error(file.string() + ": not what was written (" + error.what() + "); restore it");
    }
}

}  // namespace llmc
