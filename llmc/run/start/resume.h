// resume.h - finds the checkpoint for --resume, and checks whether this run may resume from it
//
// Why a run may not resume, in the order of the checks:
//   another run writes to its folder                            lock_log() of start/startup.h
//   no complete checkpoint, or contents that no run writes      find_resumption(), read_trainer_state()
//   flags that cannot be combined; ranks that cannot make it    options_of_run(), check_together(), StepPlan
//   fewer steps than it has made                                plan_steps()
//   steps of another run in its folder                          require_free_names()
//   names of its folder that are folders or pipes               require_usable_names()
//   a flag that must be the same (base/option.h), other data    changes_since()
//   --keep-checkpoints that deletes those of --major-every      changes_since()
//   another optimizer; too many steps without an update         check_resumption() of start/run_plan.h
//   flags or counts of the optimizer; its files                 OptimizerKind::check_resumption; load_optimizer()
//   a log that is not of this program                           Report
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "llmc/run/checkpoint/trainer_state.h"
#include "llmc/run/options/command_line.h"

namespace llmc {

struct Resumption {
    std::filesystem::path folder;
    TrainerState state;
    RunSettings settings;  // of state.run.options
};

// What --resume finds.
struct ResumeSearch {
    struct Damaged {
        std::filesystem::path folder;
        std::string why;
    };
    std::optional<Resumption> resumption;           // empty: the run starts at its first step
    std::vector<Damaged> damaged;                   // newer checkpoints in --output-dir with a missing or changed file
    std::vector<std::filesystem::path> unfinished;  // hidden, incomplete checkpoints
    std::string options;                            // without a checkpoint: options.json of the run that saved none
};
// Every rank calls it and gets the same. Reads all files of the checkpoint and verifies their checksums; prints the
// checkpoints that it skips. Changes nothing. Throws Error if auto finds only damaged ones, the folder is not a
// checkpoint, or the system does not let it read one: a checkpoint that cannot be read now is not damaged.
ResumeSearch find_resumption(const CheckpointSettings& checkpoints, Communicator& communicator);
// The options of the run: what is not given is as in the checkpoint that it resumes from. Its ranks are --ranks, or
// else `started`. Throws Error for options that cannot be combined.
RunSettings options_of_run(const CommandLine& line, const ResumeSearch& search, int started);
// Rank 0 calls it once this run holds the log: renames damaged checkpoints to NAME.damaged, and removes unfinished
// ones. Throws Error, before it changes anything, if another run has written a newer checkpoint since, or has changed a
// damaged one.
void clear_for_resumption(const ResumeSearch& search, const CheckpointSettings& checkpoints);

// Whether the existing log and checkpoints are those of the run that is resumed.
bool appends_to_log(const CheckpointSettings& checkpoints, const Resumption* resumption);
// Throws Error if --output-dir holds a checkpoint of another run, which --resume auto would find, or one of another
// continuation of the same run, after the step that this one starts from.
void require_free_names(const ResumeSearch& search, const CheckpointSettings& checkpoints);
// Throws Error if the log, the options or the link of --keep-best exists and is something else, such as a folder.
void require_usable_names(const CheckpointSettings& checkpoints);

struct Changes {
    std::vector<std::string> options;  // "--lr 0.0006 -> 0.0003"
    bool data = false;                 // other training shards
    bool validation = false;           // validations read other targets
};
bool are_same(const std::vector<Fact>& some, const std::vector<Fact>& others);
// Throws Error that names the difference if data or a flag that must be the same differ, or if --major-every is gone.
// `new_data`: other training shards are allowed.
Changes changes_since(const RunIdentity& before, const RunIdentity& now, bool new_data);
// What the state has of data that this run does not read: it starts again.
void forget_other_data(TrainerState& state, const Changes& changes);

}  // namespace llmc
