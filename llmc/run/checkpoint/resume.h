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

// What --resume finds. Every rank calls it and gets the same.
struct Found {
    std::optional<Resumption> resumption;         // nothing: the run begins at its start
    std::vector<std::filesystem::path> damaged;   // newer ones in --output-dir that are not as they were written
    std::vector<std::filesystem::path> unfinished;  // hidden ones, not written to their end
};
// All files of the checkpoint have been read and are as they were written; what is passed over is named on stderr.
// Changes nothing. Throws Error where auto finds damaged ones only, or a folder is no checkpoint.
Found find_resumption(const Options& options, Communicator& communicator);
// Rank 0, once the log is this run's alone: moves damaged ones aside, as NAME.damaged, and removes unfinished ones.
// Throws Error where another run has written a newer checkpoint since.
void make_way(const Found& found, const Options& options);

// The log that is there is that of the run which this one goes on with, and so are the checkpoints.
bool appends_to_log(const Options& options, const Resumption* resumption);
// Throws Error where --output-dir holds, or may come to hold, a checkpoint of another run, or of another way on from
// the same one. `last_step`: of this run.
void require_free_names(const Found& found, const Options& options, std::int64_t last_step);

struct Changes {
    std::vector<std::string> options;  // "--lr 0.0006 -> 0.0003"
    bool data = false;                 // other training shards
};
// Throws Error, which names the difference, where another model, data or batch would be gone on with. `new_data`:
// other training shards are meant.
Changes changes_since(const RunIdentity& before, const RunIdentity& now, bool new_data);

}  // namespace llmc
