// data_loader_test.cpp - the tokens of each batch: sequential and shuffled order, ranks, epochs, padding, seeking,
// prefetch
#include <limits>
#include <memory>
#include <set>
#include <tuple>

#include "kernels/base/error.h"
#include "kernels/device/types.h"
#include "llmc/data/data_loader.h"
#include "test/support/shard_support.h"

using namespace llmc;
using namespace test;
using kernels::kIgnoreTarget;

namespace {

using Row = std::vector<std::int32_t>;  // the inputs of a row that have a target

struct Layout {
    int world, micro_batch, micro_batches;
};

StepPlan steps(const BatchShape& batch, int micro_batches = 1) {
    return {batch, {{0, micro_batches * batch.global_positions()}}};
}
std::int64_t steps_in(std::int64_t epochs, const DataLoader& loader, const DataLoaderSettings& o) {
    return o.steps.steps_within(loader.positions_in(epochs));
}
DataLoaderSettings settings(int micro_batch, int seq_len, int rank, int world, int micro_batches = 1) {
    DataLoaderSettings o;
    o.steps = steps({.micro_batch = micro_batch, .seq_len = seq_len, .rank = rank, .world = world}, micro_batches);
    o.prefetch = false;
    return o;
}
DataLoaderSettings ordered(DataLoaderSettings o, bool shuffle, std::uint64_t seed, bool pad = false) {
    o.data.shuffle = shuffle;
    o.seed = seed;
    o.data.pad_last = pad;
    return o;
}

// Checks counting data: every target is its input + 1, and the inputs of a row are consecutive; positions without
// target come last and have input 0.
void append_rows(std::vector<Row>& rows, const Batch& batch, int seq_len) {
    std::int64_t valid = 0;
    for (std::size_t first = 0; first < batch.inputs.size(); first += std::size_t(seq_len)) {
        Row row;
        for (std::size_t i = first; i < first + std::size_t(seq_len); ++i) {
            const std::int32_t input = batch.inputs[i], target = batch.targets[i];
            if (target == kIgnoreTarget) {
                if (input != 0) FAIL("input " << input << " of the padding");
                continue;
            }
            if (target != input + 1) FAIL("target " << target << " of input " << input);
            if (row.size() != i - first) FAIL("input " << input << " behind padding");
            if (!row.empty() && input != row.back() + 1) FAIL("input " << input << " after " << row.back());
            row.push_back(input);
        }
        valid += std::int64_t(row.size());
        rows.push_back(row);
    }
    if (batch.valid_targets != valid) FAIL("valid_targets is " << batch.valid_targets << ", counted " << valid);
}

// Rows in the order (step, micro-step, rank, row), starting at `position`: the order of a single process with one large
// batch.
std::vector<Row> global_rows(const ShardSet& shards, const DataLoaderSettings& o, Layout layout, std::int64_t rows,
                             LoaderPosition position = {}) {
    std::vector<std::unique_ptr<DataLoader>> ranks;
    for (int rank = 0; rank < layout.world; ++rank) {
        DataLoaderSettings of_rank = o;
        of_rank.steps = steps({.micro_batch = layout.micro_batch, .seq_len = o.steps.batch().seq_len, .rank = rank,
                               .world = layout.world}, layout.micro_batches);
        ranks.push_back(std::make_unique<DataLoader>(shards, of_rank));
        if (rank % 2 == 1) ranks.back()->next();  // seek() must work after reading elsewhere
        ranks.back()->seek(position);
        CHECK(ranks.back()->position() == position);
    }
    std::vector<Row> read;
    while (std::ssize(read) < rows) {
        for (auto& rank : ranks) {
            append_rows(read, rank->next(), o.steps.batch().seq_len);
            CHECK(rank->position() == ranks[0]->position());
        }
    }
    read.resize(std::size_t(rows));
    return read;
}

}  // namespace

TEST_CASE("sequential: an epoch continues in the next shard when no full row with its last target is left",
          "[data_loader]") {
    const ScratchFolder folder;
    // In rows of 5 tokens: 12 fit 61, 11 fit 60 (the last target is missing), none fits 5, 4 fit 24, and 1 fits 6.
    const ShardSet shards = counting_shards(folder, {61, 60, 5, 24, 6});
    const DataLoader loader(shards, settings(2, 5, 1, 2));
    CHECK(loader.targets() == 60 + 59 + 4 + 23 + 5);
    CHECK(loader.dropped_per_epoch() == 0 + 4 + 4 + 3 + 0);
    CHECK(loader.positions_in(1) == 28 * 5);
    CHECK(steps_in(1, loader, settings(2, 5, 1, 2)) == 7);
    CHECK(steps_in(3, loader, settings(2, 5, 0, 2, 2)) == 10);  // 84 rows, 8 a step
    CHECK_THROWS_AS(loader.positions_in(-1), Error);
    std::vector<int> first;
    for (const auto& [at, rows] : {std::pair{0, 12}, {61, 11}, {126, 4}, {150, 1}})
        for (int row = 0; row < rows; ++row) first.push_back(at + 5 * row);
    const auto rows = global_rows(shards, settings(1, 5, 0, 1), {2, 2, 1}, 3 * 28);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        REQUIRE(rows[i].size() == 5);
        REQUIRE(rows[i][0] == first[i % 28]);
    }
    const ScratchFolder other;
    const ShardSet small = counting_shards(other, {5, 9, 10});  // the first two have no row of 9
    CHECK((global_rows(small, settings(1, 9, 0, 1), {1, 1, 1}, 2) ==
           std::vector<Row>(2, {14, 15, 16, 17, 18, 19, 20, 21, 22})));
}

TEST_CASE("rows of weighted corpora: each by its share, in epochs of its own, on any ranks, from any position",
          "[data_loader]") {
    const ScratchFolder folder;
    counting_shards(folder, {500, 333, 7, 411});  // rows of 8: 62 + 41 + 0 + 51
    const auto with = [&](const char* name, const char* weight) { return (folder / name).string() + weight; };
    const ShardSet shards({with("s_{0,2}.bin", ":1"), with("s_1.bin", ":2.5"), with("s_3.bin", ":0.5")});
    const bool shuffle = GENERATE(false, true), pad = GENERATE(false, true);
    DataLoaderSettings o = ordered(settings(1, 8, 0, 1), shuffle, 7, pad);
    const auto reference = global_rows(shards, o, {1, 24, 1}, 22 * 24);
    for (const Layout layout : {Layout{1, 1, 24}, {4, 2, 3}, {3, 8, 1}, {2, 3, 4}})
        CHECK((global_rows(shards, o, layout, 22 * 24) == reference));
    const std::int64_t rows = pad ? 63 + 1 + 42 + 52 : 62 + 41 + 51;
    const auto resumed = global_rows(shards, o, {2, 6, 2}, 10 * 24, {.epoch = 5 * 24 / rows, .row = 5 * 24 % rows});
    CHECK((resumed == std::vector<Row>(reference.begin() + 5 * 24, reference.begin() + 15 * 24)));

    const std::int64_t of_second = pad ? 42 : 41;
    std::vector<Row> second, sorted;
    std::int64_t counts[3] = {};
    for (const Row& row : reference) {
        const bool is_second = row[0] >= 500 && row[0] < 833;
        ++counts[is_second ? 1 : row[0] < 840 ? 0 : 2];
        if (is_second) second.push_back(row);
    }
    CHECK((counts[0] == 132 && counts[1] == 330 && counts[2] == 66));  // 2 : 5 : 1
    CHECK(DataLoader(shards, o).epochs_of_corpus(1, 528 * o.steps.batch().seq_len) == 330.0 / double(of_second));
    for (auto epoch = second.begin(); second.end() - epoch >= of_second; epoch += of_second) {
        sorted.assign(epoch, epoch + of_second);
        CHECK(std::is_sorted(sorted.begin(), sorted.end()) == !shuffle);
        CHECK(std::set<Row>(sorted.begin(), sorted.end()).size() == std::size_t(of_second));
    }
    CHECK(std::equal(second.begin(), second.begin() + of_second, second.begin() + of_second) == !shuffle);
    CHECK_THROWS_WITH(DataLoader(ShardSet({with("s_0.bin", ":1"), with("s_2.bin", ":1")}), settings(1, 8, 0, 1)),
                      Contains("s_2.bin\" is 0; expected at least 1"));
}

TEST_CASE("the rows of a step depend only on the data, the order and its tokens, not on the ranks", "[data_loader]") {
    const ScratchFolder folder;
    // Rows of 8: 62 + 41 + 0 + 51 + 0; padded 63 + 42 + 1 + 52 + 0.
    const ShardSet shards = counting_shards(folder, {500, 333, 7, 411, 1});
    const bool shuffle = GENERATE(false, true), pad = GENERATE(false, true);
    DataLoaderSettings o = ordered(settings(1, 8, 0, 1), shuffle, 7, pad);
    // More than three epochs; with padding, each ends with its seventh step of 24.
    const std::int64_t rows = pad ? 158 : 154, epoch = pad ? 7 * 24 : rows;
    const auto reference = global_rows(shards, o, {1, 24, 1}, 22 * 24);
    for (const Layout layout : {Layout{1, 1, 24}, {2, 12, 1}, {4, 2, 3}, {3, 8, 1}, {8, 1, 3}, {2, 3, 4}}) {
        CAPTURE(shuffle, pad, layout.world, layout.micro_batch);
        CHECK((global_rows(shards, o, layout, 22 * 24) == reference));
    }

    // Every row occurs exactly once per epoch, and padding rows come last; the order is new in each epoch if shuffled,
    // else always sequential.
    std::vector<std::vector<Row>> epochs;
    std::set<Row> all;
    for (int e = 0; e < 3; ++e) {
        epochs.emplace_back(reference.begin() + e * epoch, reference.begin() + (e + 1) * epoch);
        const std::set<Row> distinct(epochs[e].begin(), epochs[e].begin() + rows);
        CHECK(distinct.size() == std::size_t(rows));
        CHECK(std::all_of(epochs[e].begin() + rows, epochs[e].end(), [](const Row& row) { return row.empty(); }));
        CHECK((e == 0 || distinct == all));
        all = distinct;
    }
    CHECK((epochs[0] != epochs[1]) == shuffle);
    CHECK((epochs[1] != epochs[2]) == shuffle);
    CHECK(std::is_sorted(epochs[0].begin(), epochs[0].begin() + rows) == !shuffle);
    std::set<Row> expected;
    std::int64_t targets = 0, trained = 0;
    for (const auto& [first, size] : {std::pair{0, 500}, {500, 333}, {833, 7}, {840, 411}, {1251, 1}}) {
        targets += size - 1;
        for (int at = 0; at < size - 1 && (pad || at + 8 < size); at += 8) {
            Row row(std::size_t(std::min(8, size - 1 - at)));
            std::iota(row.begin(), row.end(), first + at);
            trained += std::ssize(row);
            expected.insert(row);
        }
    }
    CHECK(all == expected);

    BatchShape batch = o.steps.batch();
    batch.micro_batch = 24;
    o.steps = steps(batch);
    DataLoader loader(shards, o);
    CHECK(loader.targets() == targets);
    CHECK(loader.dropped_per_epoch() == targets - trained);
    CHECK((loader.dropped_per_epoch() == 0) == pad);
    CHECK(steps_in(3, loader, o) == (pad ? 21 : 19));
    CHECK(loader.positions_in(3) == (pad ? 21 * 24 : 462) * 8);
    for (int i = 0; i < 7; ++i) loader.next();
    CHECK(loader.position() == (pad ? LoaderPosition{1, 0} : LoaderPosition{1, 7 * 24 - 154}));
    if (!shuffle) return;
    o.seed = 8;
    CHECK((global_rows(shards, o, {1, 24, 1}, 22 * 24) != reference));
}

TEST_CASE("a loader continues from any position, with any number of ranks and micro-batches", "[data_loader]") {
    const ScratchFolder folder;
    const ShardSet shards = counting_shards(folder, {300, 1, 77, 200});  // rows of 8: 37 + 9 + 24; padded 38 + 10 + 25
    const bool shuffle = GENERATE(false, true), pad = GENERATE(false, true), prefetch = GENERATE(false, true);
    CAPTURE(shuffle, pad, prefetch);
    const DataLoaderSettings plain = ordered(settings(1, 8, 0, 1), shuffle, 3, pad);
    DataLoaderSettings o = plain;
    o.prefetch = prefetch;
    const std::vector<Layout> layouts{{1, 12, 1}, {2, 2, 3}, {3, 4, 1}, {4, 1, 3}};  // of a step of 12 rows
    const std::int64_t epoch = pad ? 84 : 70, ahead = 30;
    const auto reference = global_rows(shards, plain, layouts[0], 2 * epoch + 12 + ahead);
    for (std::size_t before = 0; before < layouts.size(); ++before) {
        DataLoaderSettings of_rank = o;  // the last rank's; all have the same position
        const auto [world, micro_batch, micro_batches] = layouts[before];
        of_rank.steps = steps({.micro_batch = micro_batch, .seq_len = 8, .rank = world - 1, .world = world},
                              micro_batches);
        DataLoader ran(shards, of_rank);
        for (std::int64_t row = 0; row < 2 * epoch + 12; row += world * micro_batch) {  // over two epochs
            const LoaderPosition position = ran.position();
            CHECK(position == LoaderPosition{row / epoch, row % epoch});
            const std::vector<Row> expected(reference.begin() + row, reference.begin() + row + ahead);
            const Layout after = layouts[std::size_t(row / 12) % layouts.size()];
            if ((global_rows(shards, o, after, ahead, position) != expected)) FAIL("row " << row);
            CHECK(ran.next().from == position);
        }
    }
}

TEST_CASE("a position outside the epoch is refused", "[data_loader]") {
    const ScratchFolder folder;
    const ShardSet shards = counting_shards(folder, {300, 200});  // rows of 8: 37 + 24; padded 38 + 25 and one without
    DataLoader loader(shards, settings(2, 8, 0, 1));
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    CHECK_THROWS_WITH(loader.seek({-1, 0}), Contains("epoch to seek to is -1"));
    CHECK_THROWS_WITH(loader.seek({kMost, 0}), Contains("with a row number that fits in 64 bits"));
    CHECK_THROWS_WITH(loader.seek({0, -1}), Contains("row of the epoch to seek to is -1"));
    CHECK_THROWS_WITH(loader.seek({0, 61}), Contains("is 61; expected 0 to 60"));
    CHECK_THROWS_WITH(loader.seek({0, kMost}), Contains("0 to 60"));
    CHECK(loader.position() == LoaderPosition{0, 0});
    loader.seek({kMost / 61, 60});
    loader.next();
    CHECK(loader.position() == LoaderPosition{kMost / 61 + 1, 1});
    DataLoaderSettings padded = settings(2, 8, 0, 1);
    padded.data.pad_last = true;
    DataLoader other(shards, padded);
    other.seek({0, 63});
    CHECK(other.next().valid_targets == 8);  // row 63 is padding, row 64 the first of the next epoch
    CHECK_THROWS_WITH(other.seek({0, 64}), Contains("0 to 63"));
}

TEST_CASE("data too short for one step, and invalid shapes, are refused", "[data_loader]") {
    const ScratchFolder folder;
    const ShardSet shards = counting_shards(folder, {60, 48, 1});
    CHECK_NOTHROW(DataLoader(shards, settings(1, 59, 0, 1)));
    CHECK_NOTHROW(DataLoader(shards, settings(3, 10, 0, 3)));  // 5 + 4 rows
    for (const auto& [micro_batch, world, micro_batches] : {std::tuple{5, 2, 1}, {1, 1, 10}, {1, 5, 2}}) {
        DataLoaderSettings o = settings(micro_batch, 10, 0, world, micro_batches);
        CHECK_THROWS_WITH(DataLoader(shards, o),
                          Contains("one step needs 10 sequences of 10 tokens; the training data, 109 tokens, "
                                   "has 9; use ") &&
                              Contains("in one shard at least 101 tokens, "));
        o.data.pad_last = true;
        CHECK(steps_in(1, DataLoader(shards, o), o) == 2);  // 6 + 5 rows
    }
    DataLoaderSettings full = settings(11, 10, 0, 1);
    full.data.pad_last = true;
    CHECK(steps_in(1, DataLoader(shards, full), full) == 1);  // its only step is full
    DataLoaderSettings padded = settings(64, 1000, 0, 2);
    padded.data.pad_last = true;
    CHECK(DataLoader(ShardSet({folder / "s_1.bin", folder / "s_2.bin"}), padded).next().valid_targets == 47);
    CHECK_THROWS_WITH(DataLoader(ShardSet(folder / "s_2.bin"), padded),
                      Contains("longest shard of the training data is 1; expected at least 2, an input and its"));
    CHECK_THROWS_AS(DataLoader(shards, settings(1, 1000, 0, 1)), Error);
    CHECK_THROWS_AS(DataLoader(shards, ordered(settings(1, 60, 0, 1), true, 1)), Error);
    CHECK_THROWS_WITH(DataLoader(shards, settings(0, 1, 0, 1)), Contains("micro-batch is 0"));
    CHECK_THROWS_WITH(DataLoader(shards, settings(1, 0, 0, 1)), Contains("sequence length is 0"));
    CHECK_THROWS_WITH(DataLoader(shards, settings(1, 1, 0, 0)), Contains("number of ranks is 0"));
    CHECK_THROWS_WITH(DataLoader(shards, settings(1, 1, 2, 2)), Contains("rank is 2; expected 0 to 1"));
    CHECK_THROWS_WITH(DataLoader(shards, settings(1, 1, -1, 2)), Contains("rank is -1"));
    CHECK_THROWS_AS(DataLoader(shards, settings(1 << 30, 1 << 30, 0, 1)), Error);
}

TEST_CASE("tokens beyond 2^31 bytes are read from the right offset", "[data_loader]") {
    const ScratchFolder folder;
    constexpr std::int64_t kTokens = 0x7fffffff;  // 4 GiB of zeros in a sparse file, except for three ids
    const bool shuffle = GENERATE(false, true);
    CAPTURE(shuffle);
    LoaderPosition place{0, (kTokens - 3) / 2};  // the last row of two
    if (shuffle) {
        const Permutation permutation((kTokens - 1) / 2, 9, 0);
        for (place.row = 0; 2 * permutation(place.row) < kTokens / 4 * 3;) ++place.row;
    }
    const std::int64_t offset = shuffle ? 2 * Permutation((kTokens - 1) / 2, 9, 0)(place.row) : 2 * place.row;

    ShardBytes sparse({});
    sparse.header[2] = std::int32_t(kTokens);
    const std::string path = sparse.write(folder / "s_0.bin");
    std::filesystem::resize_file(path, std::uintmax_t(1024 + 2 * kTokens));
    const std::uint16_t ids[] = {11, 12, 13};
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1024 + 2 * offset).write(reinterpret_cast<const char*>(ids), sizeof ids);
    file.close();

    const ShardSet shards(path);
    DataLoader loader(shards, ordered(settings(1, 2, 0, 1), shuffle, 9));
    loader.seek(place);
    const Batch& batch = loader.next();
    CHECK(batch.inputs == Row{11, 12});
    CHECK(batch.targets == Row{12, 13});
    CHECK(loader.position() == (shuffle ? LoaderPosition{0, place.row + 1} : LoaderPosition{1, 0}));
}

TEST_CASE("the first token of a document can be excluded from the targets", "[data_loader]") {
    const ScratchFolder folder;
    ShardBytes({9, 1, 2, 9, 3, 9, 9, 4, 5}, 10, 9).write(folder / "s_0.bin");
    const ShardSet shards(folder / "s_0.bin");
    DataLoaderSettings o = settings(2, 4, 0, 1);
    o.data.mask_document_start = true;
    DataLoader loader(shards, o);
    const Batch& batch = loader.next();
    CHECK(batch.inputs == Row{9, 1, 2, 9, 3, 9, 9, 4});
    CHECK(batch.targets == Row{kIgnoreTarget, 2, 9, kIgnoreTarget, 9, kIgnoreTarget, kIgnoreTarget, 5});
    CHECK(batch.valid_targets == 4);
}

TEST_CASE("a loader may be destroyed in every stage of prefetching", "[data_loader]") {
    const ScratchFolder folder;
    const ShardSet shards = counting_shards(folder, {3000, 2000});
    DataLoaderSettings ahead = settings(3, 16, 0, 2);
    ahead.prefetch = true;
    for (int i = 0; i < 100; ++i) {
        DataLoader loader(shards, ahead);
        if (i % 2) loader.next();
    }
}

TEST_CASE("next() throws for an invalid id on every call, and only for the batch that has it", "[data_loader]") {
    const ScratchFolder folder;
    ShardBytes bytes(std::vector<std::uint16_t>(41, 1), 257, 256);
    bytes.ids[25] = 300;
    bytes.write(folder / "s_0.bin");
    const ShardSet shards(folder / "s_0.bin");
    DataLoaderSettings o = settings(1, 10, 0, 1);
    o.prefetch = GENERATE(false, true);
    CAPTURE(o.prefetch);
    DataLoader loader(shards, o);
    loader.next();
    loader.next();
    for (int i = 0; i < 3; ++i) CHECK_THROWS_WITH(loader.next(), Contains("id of token 25 is 300"));
    CHECK(loader.position() == LoaderPosition{0, 2});
    loader.seek({});
    CHECK(loader.next().from == LoaderPosition{0, 0});
    loader.next();  // the invalid batch is being prefetched: neither seek() nor the destructor fails
    loader.seek({0, 3});
    CHECK(loader.next().from.row == 3);
}
