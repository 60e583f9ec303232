// starting_point.cpp - opens the checkpoint of --init, or looks up its name
#include "llmc/run/start/starting_point.h"

#include <filesystem>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/counted.h"
#include "llmc/weights/model_path.h"

namespace llmc {

bool is_model_name(const std::string& init) {
    const auto has_end = [&](const char* end) { return init.ends_with(end); };
    return !std::filesystem::exists(init) && init.find('/') == std::string::npos && !has_end(".bin") &&
           !has_end(".safetensors") && !has_end(".json");
}

StartingPoint starting_point(const std::string& init, const Options& options, Vocabulary vocabulary) {
    StartingPoint start;
    require_model_path(init);
    if (!is_model_name(init)) {
        NewestModel newest = newest_model(init);
        start.path = newest.path;
        start.notes = std::move(newest.notes);
        if (start.path != init) start.notes.push_back("starts from the newest checkpoint, " + start.path.string());
        start.checkpoint.emplace(start.path);
        start.config = start.checkpoint->config();
        const std::string dropout = start.checkpoint->dropout();
        if (!dropout.empty()) start.notes.push_back("dropout is not applied: config.json of --init has " + dropout);
    } else {
        start.config = model_by_name(init, vocabulary.size).config;
    }
    check(start.config);
    const bool larger = start.config.vocabulary > vocabulary.size;
    require(start.config.vocabulary == vocabulary.size || (larger && options.allow_larger_vocabulary),
            "the vocabulary of --init " + init, start.config.vocabulary,
            "that of the shards, " + std::to_string(vocabulary.size),
            larger ? "use shards made for this model, or set --allow-larger-vocabulary"
                   : "use shards made for this model, or another --init");
    require(options.seq_len <= start.config.max_seq_len, "--seq-len", options.seq_len,
            "at most the model's " + counted(start.config.max_seq_len, "position"),
            "use -t " + std::to_string(start.config.max_seq_len) +
                ", or train a model with more positions (custom:...,t=N)");
    return start;
}

std::vector<float> initial_weights(const StartingPoint& start, const ParameterTable& table, std::uint64_t seed) {
    std::vector<float> weights(std::size_t(table.elements()));
    if (start.checkpoint) start.checkpoint->read(table, weights);
    else table.initialise(weights, seed);
    return weights;
}

}  // namespace llmc
