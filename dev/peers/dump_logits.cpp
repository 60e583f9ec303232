// dump_logits.cpp - writes the logits of a saved model for given tokens, to compare them with another program
// (dev/peers/check_transformers.py)
#include <fstream>
#include <iostream>
#include <iterator>

#include "dev/tool_main.h"
#include "kernels/base/error.h"
#include "kernels/device/device.h"
#include "kernels/device/stream.h"
#include "llmc/base/number_text.h"
#include "llmc/model/decoder.h"
#include "llmc/model/model.h"
#include "llmc/weights/saved_model.h"

using namespace base;

namespace {

std::vector<int> read_ids(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    require(bool(in), "the file of token ids", path, "a file of int32 numbers that can be read");
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    require(!bytes.empty() && bytes.size() % sizeof(int) == 0, "the size of " + path, bytes.size(),
            "a multiple of 4 bytes: int32 numbers");
    std::vector<int> ids(bytes.size() / sizeof(int));
    std::memcpy(ids.data(), bytes.data(), bytes.size());
    return ids;
}

void run(const cxxopts::ParseResult& given) {
    for (const char* flag : {"checkpoint", "ids", "logits"})
        require(given.count(flag) > 0, std::string("--") + flag, "not given", "a path", "see --help");
    const auto newest = llmc::newest_model(given["checkpoint"].as<std::string>());
    for (const std::string& note : newest.notes) std::cerr << "note: " << note << '\n';
    const llmc::SavedModel checkpoint(newest.path);
    const std::vector<int> ids = read_ids(given["ids"].as<std::string>());
    const std::size_t seq_len = std::size_t(given["seq-len"].as<int>());
    require(seq_len >= 1 && ids.size() % seq_len == 0, "the number of ids", ids.size(),
            "a multiple of --seq-len = " + std::to_string(seq_len));
    for (int id : ids)
        require(id >= 0 && id < checkpoint.config().vocabulary, "a token id", id,
                "0 to " + std::to_string(checkpoint.config().vocabulary - 1));

    llmc::Context context{device::open(0), device::Stream(), kernels::Matmul()};
    const llmc::ModelSetup setup{.config = checkpoint.config(), .shape = {1, 1}, .training = false};
    const auto model = llmc::make_model(setup, llmc::ParameterTable(setup.config), context);
    std::vector<float> weights(std::size_t(model->table().elements()));
    checkpoint.read(model->table(), weights);
    model->load(weights);

    const auto decoder = llmc::make_decoder(*model, {.sequences = 1, .window = int(seq_len)}, context);
    std::ofstream out(given["logits"].as<std::string>(), std::ios::binary);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::span<const int> token(&ids[i], 1);
        if (i % seq_len == 0) decoder->start(token);
        else decoder->step(token);
        const auto logits = decoder->logits(0);
        out.write(reinterpret_cast<const char*>(logits.data()), std::streamsize(logits.size_bytes()));
    }
    out.close();
    require(bool(out), "the file of logits", given["logits"].as<std::string>(), "a file that can be written");
    std::cout << llmc::counted(std::int64_t(ids.size()), "row") << " of " << checkpoint.config().vocabulary
              << " logits\n";
}

cxxopts::Options command_line() {
    cxxopts::Options options("dump_logits",
                             "Writes the logits of every position: float32, one row of the vocabulary per token.\n");
    options.custom_help("--checkpoint PATH --ids FILE --logits FILE [OPTION...]");
    options.add_options()
        ("checkpoint", "folder of a saved model", cxxopts::value<std::string>(), "PATH")
        ("ids", "int32 token ids, one sequence after the other", cxxopts::value<std::string>(), "FILE")
        ("logits", "file to write", cxxopts::value<std::string>(), "FILE")
        ("seq-len", "tokens per sequence", cxxopts::value<int>()->default_value("64"), "N")
        ("h,help", "print this help and exit");
    return options;
}

}  // namespace

int main(int argc, char** argv) { return tool_main("dump_logits", command_line(), argc, argv, run); }
