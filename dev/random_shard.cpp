// random_shard.cpp - a shard of random tokens of GPT-2's vocabulary, to measure speed with
#include <charconv>
#include <cxxopts.hpp>
#include <vector>

#include "dev/tool_main.h"
#include "kernels/device/error.h"
#include "llmc/data/shard_writer.h"

namespace {

cxxopts::Options command_line() {
    cxxopts::Options options("random_shard", "Writes a shard of random tokens of GPT-2's vocabulary.\n");
    options.custom_help("PATH TOKENS").positional_help("");
    options.add_options()("h,help", "print this and stop");
    options.add_options("words")("words", "", cxxopts::value<std::vector<std::string>>());
    options.parse_positional("words");
    return options;
}

void run(const cxxopts::ParseResult& given) {
    const auto words = given.count("words") ? given["words"].as<std::vector<std::string>>()
                                            : std::vector<std::string>();
    require(words.size() == 2, "the number of words", words.size(), "2, the shard's path and its number of tokens");
    const std::string& text = words[1];
    std::int32_t tokens = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tokens);
    require(error == std::errc{} && end == text.data() + text.size() && tokens >= 1, "the number of tokens",
            in_quotes(text), "1 to 2147483647");
    const llmc::Vocabulary vocabulary;
    std::vector<std::uint16_t> ids(static_cast<std::size_t>(tokens));
    std::uint64_t state = 1;
    for (std::uint16_t& id : ids) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        id = std::uint16_t((state >> 33) % unsigned(vocabulary.size));
    }
    llmc::ShardWriter writer(words[0], vocabulary);
    writer.append(ids);
    writer.publish();
}

}  // namespace

int main(int argc, char** argv) { return tool_main("random_shard", command_line(), argc, argv, run); }
