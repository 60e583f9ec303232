// starting_point.h - the model that --init names or contains, and the initial weights
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "llmc/comm/communicator.h"
#include "llmc/data/shard.h"
#include "llmc/run/options/options.h"
#include "llmc/weights/checkpoint.h"

namespace llmc {

struct StartingPoint {
    ModelConfig config;
    std::optional<Checkpoint> checkpoint;  // empty: random weights
    std::filesystem::path path{};          // the checkpoint's
    std::vector<std::string> notes{};      // which checkpoint of a run is used; what of its config is not applied
};

// Whether --init is the name of a model, such as d12; otherwise it is a path.
bool is_model_name(const std::string& init);

// The model that --init names, as newest_model() finds it; a name such as d12 is unchanged. Every rank calls it and
// gets the same, for which rank 0 alone reads the files. Throws Error as newest_model().
NewestModel model_of_init(const std::string& init, Communicator& ranks);

// `model`: of model_of_init(), or the folder for --resume. Throws Error if there is no such model, if its vocabulary
// differs from the shards' (it may be larger with --allow-larger-vocabulary), or if it has fewer positions than
// --seq-len.
StartingPoint starting_point(const NewestModel& model, const Options& options, Vocabulary vocabulary);

// table.elements() floats: from the checkpoint, or by --seed.
std::vector<float> initial_weights(const StartingPoint& start, const ParameterTable& table, const Options& options);

}  // namespace llmc
