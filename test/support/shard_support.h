// shard_support.h - shared by the tests of data: a full disk, valid and invalid shards written byte by byte, and
// GPT-2's merges
#pragma once
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/data/shard_set.h"
#include "llmc/text/bpe_merges.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

namespace test {

// During its lifetime files cannot grow beyond `bytes`, as on a full disk.
struct FullDisk {
    rlimit before{};
    explicit FullDisk(rlim_t bytes) {
        std::signal(SIGXFSZ, SIG_IGN);
        getrlimit(RLIMIT_FSIZE, &before);
        const rlimit small{bytes, before.rlim_max};
        REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    }
    ~FullDisk() {
        setrlimit(RLIMIT_FSIZE, &before);
        std::signal(SIGXFSZ, SIG_DFL);
    }
};

// The bytes of a shard, written independently of the writer under test; a test can change any header word.
struct ShardBytes {
    std::array<std::int32_t, 256> header{};
    std::vector<std::uint16_t> ids;

    explicit ShardBytes(std::vector<std::uint16_t> tokens, int vocabulary = 0,
                        int end_of_text = 0) : ids(std::move(tokens)) {
        header[0] = 20240520;
        header[1] = 1;
        header[2] = std::int32_t(ids.size());
        header[3] = vocabulary;
        header[4] = end_of_text;
    }
    std::string bytes() const {
        return std::string(reinterpret_cast<const char*>(header.data()), sizeof header) +
               std::string(reinterpret_cast<const char*>(ids.data()), 2 * ids.size());
    }
    std::string write(const std::filesystem::path& path) const { return write_bytes(path, bytes()).string(); }
};

// All tokens of the matching shards, in order.
inline std::vector<int> tokens_of(const std::string& pattern) {
    std::vector<int> ids;
    const llmc::ShardSet shards(pattern);
    for (const llmc::Shard& shard : shards.shards())
        for (const std::uint16_t id : shard.read(0, shard.tokens())) ids.push_back(id);
    return ids;
}

// Ids first, first + 1, ...: every token identifies its position in the test's data.
inline std::vector<std::uint16_t> counting(int size, int first = 0) {
    std::vector<std::uint16_t> ids(static_cast<std::size_t>(size));
    std::iota(ids.begin(), ids.end(), std::uint16_t(first));
    return ids;
}

// Shards whose ids continue from one to the next, so that every token identifies its position.
inline llmc::ShardSet counting_shards(const ScratchFolder& folder, const std::vector<int>& sizes) {
    int first = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        ShardBytes(counting(sizes[i], first), 65536, 65535).write(folder / ("s_" + std::to_string(i) + ".bin"));
        first += sizes[i];
    }
    return llmc::ShardSet(folder / "s_*.bin");
}

// The tokens of documents: 256 and the bytes of each.
inline std::vector<int> byte_tokens(const std::vector<std::string_view>& documents) {
    std::vector<int> ids;
    for (const auto document : documents) {
        ids.push_back(256);
        for (const char c : document) ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
}

// GPT-2's merges. Skips the test case without them.
inline std::filesystem::path gpt2_merges() {
    const std::filesystem::path file = llmc::find_gpt2_merges();
    if (file.empty()) skip("scripts/get_gpt2_tokenizer.sh has not put GPT-2's merges into data/gpt2");
    return file;
}

}  // namespace test
