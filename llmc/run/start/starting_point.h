// starting_point.h - the model that --init names or holds, and the weights that training starts from
#pragma once
#include <optional>
#include <vector>

#include "llmc/data/shard.h"
#include "llmc/run/options.h"
#include "llmc/weights/checkpoint.h"

namespace llmc {

struct StartingPoint {
    ModelConfig config;
    std::optional<Checkpoint> checkpoint;  // empty: random weights
    std::string note{};                    // of what the checkpoint asks for and does not get; empty: nothing
};

// Whether --init is the name of a model, such as d12; else it is a path.
bool is_model_name(const std::string& init);

// `init`: --init, or the folder that --resume goes on from. Throws Error where it names nothing, its vocabulary is not
// that of the shards (larger with --allow-larger-vocabulary), or it has fewer positions than --seq-len.
StartingPoint starting_point(const std::string& init, const Options& options, Vocabulary vocabulary);

// table.elements() floats: those of the checkpoint, else random ones from the seed.
std::vector<float> initial_weights(const StartingPoint& start, const ParameterTable& table, std::uint64_t seed);

}  // namespace llmc
