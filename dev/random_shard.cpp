// random_shard.cpp - a shard of random tokens of GPT-2's vocabulary, to measure speed with: random_shard PATH TOKENS
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "llmc/data/shard_writer.h"

int main(int argc, char** argv) try {
    const long long tokens = argc == 3 ? std::atoll(argv[2]) : 0;
    if (tokens < 1) {
        std::fprintf(stderr, "usage: random_shard PATH TOKENS\n");
        return 2;
    }
    const llmc::Vocabulary vocabulary;
    std::vector<std::uint16_t> ids(static_cast<std::size_t>(tokens));
    std::uint64_t state = 1;
    for (std::uint16_t& id : ids) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        id = std::uint16_t((state >> 33) % unsigned(vocabulary.size));
    }
    llmc::ShardWriter writer(argv[1], vocabulary);
    writer.append(ids);
    writer.publish();
} catch (const std::exception& error) {
    std::fprintf(stderr, "random_shard: %s\n", error.what());
    return 1;
}
