// shared_facts.cpp - build, flags and data as facts to compare
#include "llmc/run/start/shared_facts.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "llmc/base/counted.h"
#include "llmc/base/fingerprint.h"
#include "llmc/base/json_text.h"
#include "llmc/base/input_file.h"
#include "llmc/run/start/version.h"

namespace llmc {
namespace {

// Reads only some blocks, unlike fingerprint_of_file(): shards may be very large.
std::string fingerprint_of_blocks(const std::string& path) {
    constexpr std::size_t kBlocks = 16, kBlockBytes = 4096;
    const InputFile file(path, "shard");
    const std::size_t block = std::min<std::uint64_t>(file.size(), kBlockBytes), spread = file.size() - block;
    std::vector<std::byte> read(kBlocks * block);
    for (std::size_t i = 0; i < kBlocks; ++i)
        file.read(spread * i / (kBlocks - 1), std::span(read).subspan(i * block, block));
    return fingerprint(read);
}

}  // namespace

std::vector<Fact> build_facts(const nlohmann::ordered_json& version) {
    std::vector<Fact> facts;
    for (const auto& [name, value] : version.items())
        facts.push_back({name, value.is_null() ? "unknown" : value.get<std::string>()});
    return facts;
}

std::vector<Fact> command_line_facts(const CommandLine& line) {
    constexpr std::array kOfTheHost{"device", "hellaswag", "merges", "threads", "train-data", "tune-file", "val-data"};
    const nlohmann::json flags = to_json(line.options);
    std::vector<Fact> facts = build_facts(version_json());
    for (const auto& [name, request] : {std::pair("--help", Request::help), {"--version", Request::version},
                                        {"--print-config", Request::print_config}})
        facts.push_back({name, line.request == request ? "true" : "false"});
    for (const auto& [name, value] : flags.items())
        if (std::find(kOfTheHost.begin(), kOfTheHost.end(), name) == kOfTheHost.end())
            facts.push_back({"--" + name, text_of(value)});
    return facts;
}

CommandLine parse_on_all_ranks(int argc, char** argv, Communicator& ranks) {
    CommandLine line = together(ranks, [&] { return parse(argc, argv); });
    require_same(ranks, command_line_facts(line), "start all ranks with the same flags");
    return line;
}

std::vector<Fact> shard_facts(const std::string& kind, const ShardSet* shards) {
    std::vector<Fact> facts{{"a number of " + kind + " shards of", std::to_string(shards ? shards->size() : 0)}};
    for (std::int64_t i = 0; shards && i < shards->size(); ++i) {
        const Shard& shard = (*shards)[i];
        const auto [vocabulary, end_of_text] = shard.vocabulary();
        facts.push_back({kind + " shard " + std::to_string(i) + " with",
                         std::to_string(shard.tokens()) + " tokens, vocabulary " + std::to_string(vocabulary) +
                             ", end of text " + std::to_string(end_of_text) + ", fingerprint " +
                             fingerprint_of_blocks(shard.path()),
                         shard.path()});
    }
    return facts;
}

std::vector<Fact> hellaswag_facts(const HellaSwagFile* file) {
    if (!file) return {{"HellaSwag", "none"}};
    return {{"HellaSwag",
             counted(std::int64_t(file->examples().size()), "example") + ", fingerprint " + file->fingerprint(),
             file->path()}};
}

}  // namespace llmc
