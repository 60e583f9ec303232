// trainer_state.cpp - a run's state: the parsed values equal those in the file
#include "llmc/run/checkpoint/trainer_state.h"

#include <nlohmann/json.hpp>

#include "llmc/base/json_text.h"
#include "test/fuzz/target.h"

namespace {

const fuzz::Target trainer_state("trainer_state", [](std::string_view bytes) {
    fuzz::file_with("trainer_state.json", bytes);
    const llmc::TrainerState state = llmc::read_trainer_state(fuzz::scratch_folder());
    nlohmann::json text = llmc::parse_json(bytes);
    text["run"]["options"].emplace("val-spread", false);  // older runs lack it
    fuzz::must(text["step"] == state.step && text["state_files"] == nlohmann::json(state.state_files) &&
                   text["run"]["ranks"] == state.run.ranks && text["run"]["options"] == *state.run.options &&
                   text["run"]["step_tokens"] == state.batches.at(0).tokens &&
                   text["optimizer"]["losses"] == state.optimizer.losses &&
                   text["optimizer"]["norms"] == state.optimizer.norms &&
                   text["failed_in_a_row"] == state.failed_in_a_row &&
                   text["validated"] != state.tasks.at(llmc::kValidationTask).pending &&
                   text["optimizer"]["updates"] == state.optimizer.updates &&
                   text["optimizer"]["skipped_steps"] == state.optimizer.skipped_steps &&
                   text["data"]["epoch"] == state.data.epoch && text["data"]["row"] == state.data.row,
               "the numbers in the file");
    fuzz::must(state.data.row >= 0 && state.data.epoch >= 0, "a position in the data");
    fuzz::must(text["noise"].size() == state.noise.size(), "all averages");
    for (std::size_t i = 0; i < state.noise.size(); ++i)
        fuzz::must(text["noise"][i]["count"] == state.noise[i].count, "the counts in the file");
});

}  // namespace
