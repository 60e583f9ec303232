// config_json.cpp - config.json: the sizes of a model, and its dropout
#include "llmc/weights/config_json.h"

#include <nlohmann/json.hpp>

#include "llmc/base/json_text.h"
#include "llmc/weights/model_config.h"
#include "test/fuzz/target.h"

namespace {

const fuzz::Target config_json("config_json", [](std::string_view bytes) {
    const auto file = fuzz::file_with("config.json", bytes);
    const auto [config, dropout, end_of_text] = llmc::read_config_json(file);
    llmc::check(config);
    const nlohmann::json text = llmc::parse_json(bytes);
    const auto stands_there = [&](const char* key, int value) { return !text.contains(key) || text[key] == value; };
    fuzz::must(stands_there("n_layer", config.layers) && stands_there("n_head", config.heads) &&
                   stands_there("n_embd", config.channels) && stands_there("n_positions", config.max_seq_len) &&
                   stands_there("vocab_size", config.vocabulary),
               "the sizes in the file");
    fuzz::must_be_plain(llmc::describe(config));
    fuzz::must_be_plain(dropout);
    fuzz::must(end_of_text >= -1 && end_of_text < config.vocabulary, "an end of text of the vocabulary");
    const auto again = fuzz::scratch_folder() / "again.json";
    llmc::write_config_json(again, config, -1);
    fuzz::must(llmc::read_config_json(again).model == config, "the same sizes after writing and reading");
});

}  // namespace
