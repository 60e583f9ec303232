// resume.h - the checkpoint that --resume goes on from, and whether this run may go on with that one
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "llmc/run/options.h"
#include "llmc/run/trainer_state.h"

namespace llmc {

struct Resumption {
    std::filesystem::path folder;
    TrainerState state;
};

// Nothing: the run begins at its start. Every rank calls it and gets the same. All files of the checkpoint have been
// read and are as they were written; newer ones that are not are named on stderr and, unless it is a dry run, moved
// aside as NAME.damaged. Throws Error where auto finds damaged ones only, or a folder is no checkpoint.
std::optional<Resumption> find_resumption(const Options& options, Communicator& communicator);

// What makes up the run that a checkpoint was written by.
struct RunIdentity {
    std::int64_t step_tokens;
    int ranks;
    std::vector<Fact> training_data;
};
struct Changes {
    std::vector<std::string> options;  // "--lr 0.0006 -> 0.0003"
    bool data = false;                 // other training shards, as --allow-new-data allows
};
// Throws Error, which names the difference, where another model, data or batch would be gone on with.
Changes changes_since(const TrainerState& before, const Options& options, const RunIdentity& now);

// Whether the run writes into the log that is there: that of the run which it goes on with.
bool appends_to_log(const Options& options, const Resumption* resumption);

}  // namespace llmc
