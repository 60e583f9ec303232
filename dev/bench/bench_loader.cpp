// bench_loader.cpp - times the data loader: tokens per second on one core, from the page cache
#include <cstdio>
#include <filesystem>
#include <random>

#include "dev/bench/bench.h"
#include "dev/tool_main.h"
#include "llmc/base/number_text.h"
#include "llmc/data/data_loader.h"
#include "llmc/text/shard_writer.h"

namespace {

struct TemporaryShard {
    std::filesystem::path folder;

    TemporaryShard() {
        std::string name = (std::filesystem::temp_directory_path() / "bench_loader_XXXXXX").string();
        if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder: " + name);
        folder = name;
    }
    ~TemporaryShard() {
        std::error_code ignored;
        std::filesystem::remove_all(folder, ignored);
    }
    std::string write() const {
        llmc::ShardWriter writer((folder / "random.bin").string(), {});
        std::mt19937 engine(1);
        std::uniform_int_distribution<int> ids(0, 50256);
        std::vector<std::uint16_t> chunk(1 << 20);
        for (auto& id : chunk) id = std::uint16_t(ids(engine));
        for (int i = 0; i < 64; ++i) writer.append(chunk);
        writer.publish();
        return writer.path();
    }
};

double tokens_per_second(const llmc::ShardSet& shards, const llmc::DataLoaderSettings& settings) {
    llmc::DataLoader loader(shards, settings);
    const std::int64_t positions = settings.steps.batch().positions();
    // maps every page before the measurement
    for (std::int64_t read = 0; read < shards.tokens(); read += positions) loader.next();
    constexpr int kBatches = 100;
    const double seconds = bench::median_seconds([&] { for (int i = 0; i < kBatches; ++i) loader.next(); }, 1.0);
    return double(positions) * kBatches / seconds;
}

cxxopts::Options command_line() {
    cxxopts::Options options("bench_loader", "Times the data loader on one core, from the page cache.\n");
    options.custom_help("[PATTERN]").positional_help("");
    options.add_options()("h,help", "print this help and exit; PATTERN selects shards (default: 64 M random ids)");
    options.add_options("words")("pattern", "", cxxopts::value<std::string>());
    options.parse_positional("pattern");
    return options;
}

void run(const cxxopts::ParseResult& given) {
    const TemporaryShard temporary;
    const llmc::ShardSet shards(given.count("pattern") ? given["pattern"].as<std::string>() : temporary.write());
    std::printf("%s, %s\n", llmc::counted(shards.size(), "shard").c_str(),
                llmc::counted(shards.tokens(), "token").c_str());
    std::printf("%-12s %-10s %12s %12s\n", "order", "prefetch", "b x T", "G tokens/s");
    for (const bool shuffled : {false, true})
        for (const bool prefetch : {false, true})
            for (const auto& [micro_batch, seq_len] : {std::pair{4, 64}, std::pair{16, 1024}, std::pair{64, 1024}}) {
                llmc::DataLoaderSettings settings;
                settings.steps = {{.micro_batch = micro_batch, .seq_len = seq_len}, 0};
                settings.prefetch = prefetch;
                if (shuffled) settings.shuffle_seed = 42;
                std::printf("%-12s %-10s %5d x %4d %12.2f\n", shuffled ? "shuffled" : "sequential",
                            prefetch ? "yes" : "no", micro_batch, seq_len, tokens_per_second(shards, settings) * 1e-9);
            }
}

}  // namespace

int main(int argc, char** argv) { return tool_main("bench_loader", command_line(), argc, argv, run); }
