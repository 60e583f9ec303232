// export_llmc.cpp - converts a saved model to llm.c's model .bin
#include <filesystem>
#include <iostream>
#include <vector>

#include "dev/tool_main.h"
#include "kernels/base/error.h"
#include "llmc/model/precision.h"
#include "llmc/weights/llmc_file.h"
#include "llmc/weights/saved_model.h"

using namespace base;

namespace {

cxxopts::Options command_line() {
    cxxopts::Options options("dev/export_llmc", "Writes a saved model in llm.c's format, model_XXXXXXXX.bin.\n");
    options.custom_help("--checkpoint PATH --output FILE [OPTION...]").positional_help("");
    options.add_options()("e,checkpoint",
                          "a saved model: its folder (also transformers'), a .safetensors file or llm.c's .bin "
                          "file; or the folder of a run, for its newest checkpoint",
                          cxxopts::value<std::string>(), "PATH")(
        "o,output", "file to write; its folder is created if missing", cxxopts::value<std::string>(), "FILE")(
        "dtype", "fp32 (version 3 of the format) or bf16 (version 5; round to nearest)",
        cxxopts::value<std::string>()->default_value("fp32"),
        "TYPE")("overwrite", "replace FILE if it exists")("h,help", "print this help and exit");
    return options;
}

void run(const cxxopts::ParseResult& given) {
    require(given.count("checkpoint") > 0, "--checkpoint", "not given", "the model to export");
    require(given.count("output") > 0, "--output", "not given", "the file to write");
    const std::filesystem::path output = given["output"].as<std::string>();
    const auto dtype = llmc::value_by_name("--dtype", given["dtype"].as<std::string>(), llmc::kDTypes);
    std::error_code none;
    const auto status = std::filesystem::symlink_status(output, none);
    const bool replaces = std::filesystem::exists(status);
    require(!std::filesystem::is_directory(output, none) && output.has_filename(), "--output", output.string(),
            "the name of a file", "name a file in that folder");
    require(!replaces || std::filesystem::is_regular_file(status), "--output",
            output.string() + ", a device, pipe or link", "a file", "name a regular file, or a new one");
    require(!replaces || given["overwrite"].as<bool>(), "--output", output.string() + ", which already exists",
            "a new file", "choose another name, or pass --overwrite to replace it");

    const auto newest = llmc::newest_model(given["checkpoint"].as<std::string>());
    for (const std::string& note : newest.notes) std::cerr << "note: " << note << '\n';
    const llmc::SavedModel checkpoint(newest.path);
    const llmc::ParameterTable table(checkpoint.config());
    std::vector<float> weights(std::size_t(table.elements()));
    checkpoint.read(table, weights);
    llmc::write_llmc_file(output, table, weights, dtype);
    std::cout << output.string() << (replaces ? " (replaced): " : ": ") << llmc::describe(table.config())
              << ", padded to " << table.config().padded_vocabulary() << ", " << given["dtype"].as<std::string>()
              << ", " << std::filesystem::file_size(output) << " bytes, from " << newest.path.string() << '\n';
}

}  // namespace

int main(int argc, char** argv) { return tool_main("dev/export_llmc", command_line(), argc, argv, run); }
