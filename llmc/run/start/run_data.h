// run_data.h - what a run reads: the files of its data, their batches, and the model that it starts from
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/comm/agreement.h"
#include "llmc/data/data_loader.h"
#include "llmc/data/hellaswag_batches.h"
#include "llmc/data/shard_set.h"
#include "llmc/data/validation_batches.h"
#include "llmc/run/options/run_settings.h"
#include "llmc/weights/saved_model.h"

namespace llmc {

struct RunFiles {
    // --train-data, --val-data: either may be null; both only if HellaSwag alone is evaluated, or if a dry run finds
    // none.
    std::unique_ptr<const ShardSet> train, val;
    std::unique_ptr<const HellaSwagFile> hellaswag;
    std::vector<Fact> train_facts, val_facts, hellaswag_facts;

    Vocabulary vocabulary() const {  // GPT-2's, if there are no data
        return train ? train->vocabulary() : val ? val->vocabulary()
               : hellaswag ? hellaswag->vocabulary() : Vocabulary{};
    }
};

// Whose weights the validation sets have in their mean: those of --val-data, else, pattern by pattern, of --train-data;
// null: none, or there is only one set. Throws Error if these have another number of patterns.
const ShardSet* weights_of_validation(const RunFiles& files);

// Throws Error for files that cannot be read or do not match each other or the options.
RunFiles open_files(const RunSettings& options);

struct RunBatches {
    std::unique_ptr<DataLoader> loader{};  // null with --eval-only, without train, or if it is too small for a plan
    std::string too_small{};               // why, in a dry run for another machine
    std::vector<ValidationSet> validation{};  // empty: none
    std::optional<HellaSwagBatches> hellaswag{};
};

// The files must outlive them. `options` without auto. Throws Error for files that are too small for them.
RunBatches make_batches(const RunFiles& files, const RunSettings& options, const StepPlan& steps);

struct RunData {
    RunFiles files;
    RunBatches batches;
};

// What must be the same on all ranks (comm/agreement.h compares). The shards of one `kind` of data, "training" or
// "validation"; null: none. A shard is identified by its number of tokens, its vocabulary and a fingerprint of 16
// blocks of 4 KiB spread over the file, including its header and its end. This is fast for any size; differences
// between the blocks are not detected. `weighted`: whose weights the patterns have; null: none.
std::vector<Fact> shard_facts(const std::string& kind, const ShardSet* shards, const ShardSet* weighted = nullptr);
// The HellaSwag examples; null: none.
std::vector<Fact> hellaswag_facts(const HellaSwagFile* file);

// The BPE of the data, from the folder of the model (empty: there is none), which must not have other merges, or from
// those of the shards. Without a table if none has it.
std::unique_ptr<Tokenizer> bpe_of_data(const RunFiles& files, const std::filesystem::path& model);

// ---- the model that --init names or contains, and the initial weights

struct StartingPoint {
    ModelConfig config;
    std::optional<SavedModel> checkpoint;  // empty: random weights
    std::filesystem::path path{};          // the checkpoint's
    std::vector<std::string> notes{};      // which checkpoint of a run is used; what of its config is not applied
    std::optional<RunSettings> run{};      // that has saved the model; empty: not known
};

// Whether --init is the name of a model, such as d12; otherwise it is a path.
bool is_model_name(const std::string& init);

// The model that --init names, as newest_model() finds it; a name such as d12 is unchanged. Every rank calls it and
// gets the same, for which rank 0 alone reads the files. Throws Error as newest_model().
NewestModel model_of_init(const std::string& init, Communicator& ranks);

// `model`: of model_of_init(), or the folder for --resume. Throws Error if it does not exist, if its vocabulary differs
// from the shards' (it may be larger with --allow-larger-vocabulary), or if it has fewer positions than --seq-len.
StartingPoint starting_point(const NewestModel& model, const RunSettings& options, const RunFiles& files);

// table.elements() floats: from the checkpoint, or by the seed.
std::vector<float> initial_weights(const StartingPoint& start, const ParameterTable& table, std::int64_t seed);

}  // namespace llmc
