// starting_point.cpp - opens the checkpoint of --init, or looks up its name
#include "llmc/run/start/starting_point.h"

#include "kernels/base/error.h"
#include "llmc/base/counted.h"
#include "llmc/base/file_status.h"
#include "llmc/comm/agreement.h"
#include "llmc/weights/model_path.h"

namespace llmc {

bool is_model_name(const std::string& init) {
    const auto has_end = [&](const char* end) { return init.ends_with(end); };
    return !is_present(init) && init.find('/') == std::string::npos && !has_end(".bin") &&
           !has_end(".safetensors") && !has_end(".json");
}

NewestModel model_of_init(const std::string& init, Communicator& ranks) {
    NewestModel model{init, {}};
    on_first_rank(ranks, [&] {
        require_model_path(init);
        if (is_model_name(init)) return;
        model = newest_model(init);
        if (model.path != init) model.notes.push_back("starts from the newest checkpoint, " + model.path.string());
    });
    model.path = ranks.host_gather(model.path.string())[0];
    return model;
}

StartingPoint starting_point(const NewestModel& model, const Options& options, Vocabulary vocabulary) {
    const std::string init = model.path.string();
    StartingPoint start{.notes = model.notes};
    require_model_path(init);
    if (!is_model_name(init)) {
        start.path = init;
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

std::vector<float> initial_weights(const StartingPoint& start, const ParameterTable& table, const Options& options) {
    std::vector<float> weights(std::size_t(table.elements()));
    if (start.checkpoint) {
        start.checkpoint->read(table, weights);
        return weights;
    }
    table.initialise(weights, std::uint64_t(options.seed));
    return weights;
}

}  // namespace llmc
