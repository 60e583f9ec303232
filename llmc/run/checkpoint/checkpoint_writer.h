// checkpoint_writer.h - writes the checkpoints that training resumes from, overlapped with training
//
// begin() copies weights and the optimizer's state to host memory; then a thread on every rank writes them while
// training continues. Every rank writes the state that only it holds; rank 0 also writes the model and the trainer
// state. When all ranks have written, rank 0 lists the files in the manifest and renames the hidden folder to its final
// name. The threads have a control plane of their own for that, so they need no training loop: a checkpoint that has
// begun is completed however the loop ends, unless the process is killed. A folder with a final name is always
// complete, whenever the program or the machine stops.
//
//   OUT/step_00000100/config.json, model.safetensors   the model (weights/saved_model.h)
//                     optimizer-00000-of-00004.safetensors, ...   the optimizer's state (model/state_files.h); Muon,
//                                                    1-bit Adam and outer steps have further names (Optimizer::state())
//                     tokenizer.json, ...              (text/tokenizer_files.h); none, if the data's is not known
//                     trainer_state.json               (trainer_state.h)
//                     manifest.json                    (weights/manifest.h)
//   OUT/best -> step_00000100                          with --keep-best
#pragma once
#include <filesystem>
#include <memory>
#include <optional>

#include "llmc/base/background_task.h"
#include "llmc/base/option.h"
#include "llmc/base/staged_folder.h"
#include "llmc/model/model.h"
#include "llmc/model/optimizer.h"
#include "llmc/run/checkpoint/trainer_state.h"
#include "llmc/run/log/report.h"
#include "llmc/text/tokenizer_files.h"
#include "llmc/weights/manifest.h"

namespace llmc {

struct CheckpointSettings {
    std::string output_dir{};      // of the log, too; empty: nothing is written
    std::int64_t every = 0;        // steps; 0: only at the end
    double minutes = 0;            // between two, in addition; 0: off
    std::int64_t keep = 0, major_every = 0;  // the newest ones, 0: all; those of multiples, 0: off
    bool keep_best = false;        // the lowest validation loss makes a checkpoint due
    std::string resume{};          // never, auto, or a folder; empty: as never
    bool allow_new_data = false;   // when resuming

    bool resumes() const { return !resume.empty() && resume != "never"; }
};
void add_options(OptionList& list, CheckpointSettings& settings);

// What the checkpoints of a run have in common.
struct CheckpointContents {
    int end_of_text = -1;          // token id; -1: none
    TokenizerFiles tokenizer{};    // of the data; empty: not saved
    std::int64_t first_step = 0;   // completed by the checkpoint that is resumed
    RunIdentity run{};
};

class CheckpointWriter {
public:
    // All arguments must outlive it. Every rank constructs one. The destructor waits for the checkpoint.
    CheckpointWriter(const CheckpointSettings& settings, const CheckpointContents& contents, const Model& model,
                     const OptimizerStep& optimizer, Context& context, Report& report);

    // Host memory in bytes that one rank needs for its copy.
    static std::size_t copy_bytes(const ParameterTable& table, const Sharding& sharding,
                                  const OptimizerSettings& optimizer = {});

    // Collective, between the same two steps on all ranks. Waits for the checkpoint before, and returns when this one's
    // copies are made. Sets the state's run, optimizer and number of files. When the folder has its name, the
    // checkpoints that --keep-checkpoints does not keep are deleted.
    void begin(TrainerState state);
    bool is_writing() const { return begun_ && !writing_.done(); }
    // How long training waited in begin(), for the report.
    void waited(double seconds) {
        if (begun_) begun_->waited_seconds = seconds;
    }
    // Waits for the checkpoint, if one has begun, and reports it. A failure is reported, and training continues; with
    // `last` it is thrown as a SharedError. Not collective.
    void end(bool last);
    // With --keep-best, while no checkpoint is written: links OUT/best to the checkpoint of the best validation, if it
    // is there. The one before stays if the best one could not be written.
    void name_best(const HealthState& health);
    // The checkpoint that OUT/best names, if it is that of the best validation, and complete.
    std::optional<Report::Best> best(const HealthState& health) const;

private:
    struct Begun {
        TrainerState state{};
        std::filesystem::path folder;
        bool beside = false;  // next to the output folder, which was deleted or moved
        double waited_seconds = 0;
        std::string failure{};  // before anything was written; the same on all ranks
    };
    // A file of the optimizer's state that this rank writes.
    struct Copied {
        StateFile file;
        std::string name;           // of the file, in the folder
        std::span<float> values{};  // in memory_
    };
    void allocate();
    // On the threads:
    void write_and_publish();
    void write();
    void publish(const Manifest& all);  // on rank 0
    void delete_older();                // on rank 0

    const CheckpointSettings settings_;
    const CheckpointContents contents_;
    const std::filesystem::path output_dir_;
    const bool writes_model_;  // this rank
    const Model& model_;
    const OptimizerStep& optimizer_;
    Context& context_;
    Report& report_;
    const std::unique_ptr<Communicator> writers_;  // the control plane of the threads
    device::PinnedMemory memory_;  // allocated by the first checkpoint
    std::size_t memory_elements_ = 0;
    std::span<float> master_weights_;  // in it
    std::vector<Copied> copied_;
    std::int64_t good_step_;  // of the newest checkpoint whose model has not diverged (delete_older())
    std::optional<Begun> begun_;
    std::unique_ptr<StagedFolder> staged_;  // rank 0's
    Manifest written_;                      // by this rank
    BackgroundTask writing_;                // last: its thread uses the other members
};

// Loads a checkpoint's optimizer state, whatever number of ranks and ZeRO stage wrote it. Every rank calls it. Throws
// SharedError if a file, though as its manifest says, has contents that no run writes.
void load_optimizer(OptimizerStep& step, const std::filesystem::path& folder, const TrainerState& state,
                    const ParameterTable& table, Context& context);

}  // namespace llmc
