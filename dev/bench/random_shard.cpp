// random_shard.cpp - a shard of random tokens distributed as in text (test/operations/text_tokens.h), to measure speed;
// a model's loss falls below the entropy of single tokens, because half of them are determined by the preceding one
#include <vector>

#include "dev/tool_main.h"
#include "kernels/base/error.h"
#include "llmc/base/value_text.h"
#include "llmc/text/shard_writer.h"
#include "test/operations/text_tokens.h"

using namespace base;

namespace {

cxxopts::Options command_line() {
    cxxopts::Options options("random_shard", "Writes a shard of random tokens distributed as in text.\n");
    options.custom_help("[OPTION...] PATH TOKENS").positional_help("");
    options.add_options()
        ("vocabulary", "number of ids", cxxopts::value<int>()->default_value("50257"), "N")
        ("h,help", "print this and stop");
    options.add_options("words")("words", "", cxxopts::value<std::vector<std::string>>());
    options.parse_positional("words");
    return options;
}

void run(const cxxopts::ParseResult& given) {
    const auto words = given.count("words") ? given["words"].as<std::vector<std::string>>()
                                            : std::vector<std::string>();
    require(words.size() == 2, "the number of words", words.size(), "2, the shard's path and its number of tokens");
    const auto tokens = llmc::number_of<std::int32_t>(words[1]);
    require(tokens && *tokens >= 1, "the number of tokens", in_quotes(words[1]), "1 to 2147483647");
    const int size = given["vocabulary"].as<int>();
    require(size >= 2 && size <= 65536, "--vocabulary", size, "2 to 65536");
    const llmc::Vocabulary vocabulary{size, size - 1};
    operations::TextTokens draw(size);
    std::vector<std::uint16_t> ids(static_cast<std::size_t>(*tokens));
    int last = 0;
    for (std::uint16_t& id : ids) id = std::uint16_t(last = draw.next_after(last));
    llmc::ShardWriter writer(words[0], vocabulary);
    writer.append(ids);
    writer.publish();
}

}  // namespace

int main(int argc, char** argv) { return tool_main("random_shard", command_line(), argc, argv, run); }
