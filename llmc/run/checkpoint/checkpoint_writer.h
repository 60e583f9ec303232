// checkpoint_writer.h - checkpoints that training can go on from, written beside it
//
// begin() copies weights and moments into host memory; then a thread of every rank writes while training goes on. Every
// rank writes the moments that it keeps; rank 0 writes the model and the state, too. When all are done, end() has rank
// 0 list what was written in the manifest and show the folder under its name. Until then it is hidden, so that one
// whose name is there is whole, whenever the program or the machine stops.
//
//   OUT/step_00000100/config.json, model.safetensors   the model (weights/checkpoint.h)
//                     optimizer-00000-of-00004.safetensors, ...   (model/moment_files.h)
//                     onebit-00000-of-00004.safetensors, ...      (model/onebit_files.h)
//                     tokenizer.json, tokenizer_config.json, generation_config.json   (data/tokenizer_files.h)
//                     trainer_state.json               (trainer_state.h)
//                     manifest.json                    (weights/manifest.h)
#pragma once
#include <filesystem>
#include <memory>
#include <optional>

#include "llmc/base/background_task.h"
#include "llmc/base/staged_folder.h"
#include "llmc/data/tokenizer_files.h"
#include "llmc/model/model.h"
#include "llmc/model/optimizer.h"
#include "llmc/run/report.h"
#include "llmc/run/trainer_state.h"
#include "llmc/weights/manifest.h"

namespace llmc {

struct CheckpointSettings {
    std::filesystem::path output_dir;
    Sharding sharding;
    int end_of_text = -1;                                // the data's id for it; -1: none
    TokenizerFiles tokenizer{};                          // of the data; empty: none is saved
    std::int64_t keep_checkpoints = 0, major_every = 0;  // as the flags
};

class CheckpointWriter {
public:
    // All of them must outlive it.
    CheckpointWriter(const CheckpointSettings& settings, const Model& model, const Optimizer& optimizer,
                     const GradientBuckets& buckets, Context& context, Report& report);

    // Host bytes of one rank for the copy that is written while training goes on.
    static std::size_t copy_bytes(const ParameterTable& table, const Sharding& sharding,
                                  const std::optional<OnebitSettings>& onebit = {});

    // Every rank calls these between the same two steps, as they agree with each other.
    //
    // Begins the checkpoint of a state, whose moment_files it knows, after the end of the one before. Returns when the
    // copies are made.
    void begin(TrainerState state);
    bool is_writing() const { return begun_ && !writing_.done(); }  // this rank
    // Waits until all ranks have written, shows the folder, reports it and deletes what --keep-checkpoints does not
    // keep. What failed is reported, and training can go on; `last` throws it as a SharedError.
    void end(bool last);

private:
    struct Begun {
        TrainerState state{};
        std::filesystem::path folder;
        bool beside = false;  // the output folder, which was deleted or moved away
        double waited_seconds = 0;  // by training, for the copies and the checkpoint before
        std::string failure{};  // before anything was written: alike on all ranks
    };
    void take_memory(std::size_t onebit);
    void write();  // on the thread
    void show(const Manifest& all);  // rank 0
    void delete_older() const;  // rank 0

    CheckpointSettings settings_;
    const bool writes_model_, writes_moments_;  // this rank
    const Model& model_;
    const Optimizer& optimizer_;
    const GradientBuckets& buckets_;
    Context& context_;
    Report& report_;
    device::PinnedMemory memory_;  // taken by the first checkpoint
    std::span<float> master_weights_, first_moments_, second_moments_, onebit_;  // in it
    std::size_t memory_elements_ = 0;
    OnebitState onebit_state_{};
    std::optional<Begun> begun_;
    std::unique_ptr<StagedFolder> staged_;  // rank 0's
    Manifest written_;                      // by this rank
    BackgroundTask writing_;                // last: its thread ends before what it uses
};

// The optimizer's state of a checkpoint into an optimizer, whatever ranks and stage it was written by. Every rank calls
// it.
void load_moments(Optimizer& optimizer, const std::filesystem::path& folder, const TrainerState& state,
                  const ParameterTable& table, Communicator& communicator);

}  // namespace llmc
