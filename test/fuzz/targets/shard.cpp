// shard.cpp - token shards, unchanged and from a header without its 251 unused words
#include "llmc/data/shard.h"

#include <algorithm>

#include "test/fuzz/target.h"

namespace {

void read_shard(const std::filesystem::path& file) {
    const llmc::Shard shard(file.string());
    const auto vocabulary = shard.vocabulary();
    fuzz::must(vocabulary.end_of_text >= 0 && vocabulary.end_of_text < vocabulary.size, "an id of end of text");
    const auto last = shard.read(shard.tokens() - 1, 1);
    const auto ids = shard.read(0, shard.tokens());
    fuzz::must(std::ranges::all_of(ids, [&](int id) { return id < vocabulary.size; }), "ids of the vocabulary");
    fuzz::must(ids.back() == last[0], "the same last token");
}

const fuzz::Target shard("shard", [](std::string_view bytes) {
    constexpr std::size_t kMeant = 20;  // the five used words
    read_shard(fuzz::file_with("shard.bin", fuzz::with_header_of(kMeant, bytes)));
});

}  // namespace
