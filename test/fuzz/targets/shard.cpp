// shard.cpp - token shards, unchanged and from a header without its 251 unused words
#include "llmc/data/shard.h"

#include <algorithm>

#include "test/fuzz/target.h"

namespace {

const fuzz::Target shard("shard", [](std::string_view bytes) {
    constexpr std::size_t kMeant = 20;  // the five used words
    const llmc::Shard file(fuzz::file_with("shard.bin", fuzz::with_header_of(kMeant, bytes)).string());
    const auto vocabulary = file.vocabulary();
    fuzz::must(vocabulary.end_of_text >= 0 && vocabulary.end_of_text < vocabulary.size, "an id of end of text");
    const auto last = file.read(file.tokens() - 1, 1);
    const auto ids = file.read(0, file.tokens());
    fuzz::must(std::ranges::all_of(ids, [&](int id) { return id < vocabulary.size; }), "ids of the vocabulary");
    fuzz::must(ids.back() == last[0], "the same last token");
});

}  // namespace
