// config_json.cpp - the size of a model, and its dropout
#include "llmc/weights/config_json.h"

#include "llmc/weights/model_config.h"
#include "test/fuzz/target.h"

namespace {

const fuzz::Target config_json("config_json", [](std::string_view bytes) {
    const auto file = fuzz::file_with("config.json", bytes);
    const llmc::ModelConfig config = llmc::read_config_json(file);
    llmc::check(config);
    fuzz::must_be_plain(llmc::describe(config));
    fuzz::must_be_plain(llmc::dropout_in_config_json(file));
    const auto again = fuzz::scratch_folder() / "again.json";
    llmc::write_config_json(again, config, -1);
    fuzz::must(llmc::read_config_json(again) == config, "the same sizes when they are written and read again");
});

}  // namespace
