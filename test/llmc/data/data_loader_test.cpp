// data_loader_test.cpp - who reads which tokens when: sequential and shuffled order, ranks, epochs, going on from a
// state, prefetch
#include <memory>
#include <set>

#include "kernels/device/error.h"
#include "kernels/device/types.h"
#include "llmc/data/data_loader.h"
#include "test/support/shard_support.h"

using namespace llmc;
using Catch::Contains;
using kernels::kIgnoreTarget;
using test::counting_shards;
using test::ShardBytes;
using test::TemporaryFolder;

namespace {

using Row = std::vector<std::int32_t>;  // inputs of one row, then its last target

DataLoaderOptions options(int micro_batch, int seq_len, int rank, int world, int micro_batches = 1) {
    DataLoaderOptions o;
    o.shape = {.micro_batch = micro_batch, .seq_len = seq_len, .rank = rank, .world = world};
    o.micro_batches = micro_batches;
    o.prefetch = false;
    return o;
}
DataLoaderOptions shuffled(DataLoaderOptions o, std::uint64_t seed) {
    o.shuffle_seed = seed;
    return o;
}

// In counting data every target is its input's successor, and inputs of a row follow one another.
void append_rows(std::vector<Row>& rows, const Batch& batch, int seq_len) {
    for (std::size_t first = 0; first < batch.inputs.size(); first += std::size_t(seq_len)) {
        Row row(batch.inputs.begin() + std::ptrdiff_t(first), batch.inputs.begin() + std::ptrdiff_t(first) + seq_len);
        for (std::size_t i = 0; i < row.size(); ++i) {
            if (batch.targets[first + i] != row[i] + 1)
                FAIL("target " << batch.targets[first + i] << " of input " << row[i]);
            if (row[i] != row[0] + int(i)) FAIL("input " << row[i] << " in the row that begins with " << row[0]);
        }
        rows.push_back(row);
    }
}

// Rows of `steps` global steps in the order (step, micro-step, rank, row), as a single process with one large batch
// would see them.
std::vector<Row> global_rows(const ShardSet& shards, const DataLoaderOptions& of_rank_0, int steps) {
    std::vector<std::unique_ptr<DataLoader>> ranks;
    for (int rank = 0; rank < of_rank_0.shape.world; ++rank) {
        DataLoaderOptions o = of_rank_0;
        o.shape.rank = rank;
        ranks.push_back(std::make_unique<DataLoader>(shards, o));
    }
    std::vector<Row> rows;
    for (int i = 0; i < steps * of_rank_0.micro_batches; ++i)
        for (auto& rank : ranks) append_rows(rows, rank->next(), of_rank_0.shape.seq_len);
    for (auto& rank : ranks) CHECK(rank->state() == ranks[0]->state());
    return rows;
}

}  // namespace

TEST_CASE("sequential: step k of all ranks and micro-steps covers [k D, (k + 1) D), targets one further",
          "[data_loader]") {
    const TemporaryFolder folder;
    const ShardSet shards = counting_shards(folder, {5000});
    const auto [world, micro_batches, micro_batch, seq_len] =
        GENERATE(table<int, int, int, int>({{1, 1, 1, 8}, {2, 1, 3, 16}, {1, 4, 2, 5}, {3, 2, 4, 7}, {4, 3, 1, 64}}));
    CAPTURE(world, micro_batches, micro_batch, seq_len);
    const std::int64_t step_tokens = std::int64_t(world) * micro_batches * micro_batch * seq_len;

    for (int rank = 0; rank < world; ++rank) {
        DataLoader loader(shards, options(micro_batch, seq_len, rank, world, micro_batches));
        CHECK(loader.tokens_per_step() == step_tokens);
        for (std::int64_t k = 0; k < 5; ++k)
            for (int m = 0; m < micro_batches; ++m) {
                const Batch& batch = loader.next();
                REQUIRE(batch.inputs.size() == std::size_t(micro_batch * seq_len));
                CHECK(batch.valid_targets == micro_batch * seq_len);
                CHECK(batch.from == LoaderPosition{0, 0,
                                                   k * step_tokens + std::int64_t(m) * world * micro_batch * seq_len});
                const std::int64_t first = k * step_tokens + std::int64_t(m * world + rank) * micro_batch * seq_len;
                for (std::size_t i = 0; i < batch.inputs.size(); ++i) {
                    REQUIRE(batch.inputs[i] == first + std::int64_t(i));
                    REQUIRE(batch.targets[i] == first + std::int64_t(i) + 1);
                }
            }
    }
    const auto rows = global_rows(shards, options(micro_batch, seq_len, 0, world, micro_batches), 5);
    std::int32_t expected = 0;
    for (const Row& row : rows)
        for (const std::int32_t id : row) REQUIRE(id == expected++);
    CHECK(expected == 5 * step_tokens);
}

TEST_CASE("sequential: a shard is left exactly when a micro-step and its last target no longer fit", "[data_loader]") {
    const TemporaryFolder folder;
    // Micro-steps of 2 ranks * 2 * 5 = 20 tokens: 3 fit 61, 2 fit 60 (the last target is missing), none fits 20, 1 fits
    // 21.
    const ShardSet shards = counting_shards(folder, {61, 60, 20, 21});
    DataLoader loader(shards, options(2, 5, 1, 2));
    CHECK(loader.dropped_tokens() == 0 + 19 + 20 + 0);
    CHECK(loader.steps_in(1) == 6);
    const std::vector<LoaderPosition> epoch = {{0, 0, 0}, {0, 0, 20}, {0, 0, 40}, {0, 1, 0}, {0, 1, 20}, {0, 3, 0}};
    const std::vector<int> first_token = {0, 20, 40, 61, 81, 141};
    for (std::int64_t e = 0; e < 3; ++e)
        for (std::size_t i = 0; i < epoch.size(); ++i) {
            CAPTURE(e, i);
            CHECK(loader.state().next == LoaderPosition{e, epoch[i].shard, epoch[i].position});
            const Batch& batch = loader.next();
            CHECK(batch.from == LoaderPosition{e, epoch[i].shard, epoch[i].position});
            CHECK(batch.inputs.front() == first_token[i] + 10);  // rank 1
            CHECK(batch.targets.back() == first_token[i] + 20);
        }
    CHECK(DataLoader(shards, options(2, 5, 0, 2, 4)).steps_in(3) == 4);  // 18 micro-steps
    CHECK_THROWS_AS(loader.steps_in(-1), Error);
}

TEST_CASE("sequential: the first shards may be too small", "[data_loader]") {
    const TemporaryFolder folder;
    const ShardSet shards = counting_shards(folder, {5, 9, 10});
    DataLoader loader(shards, options(3, 3, 0, 1));
    CHECK(loader.state().next == LoaderPosition{0, 2, 0});
    CHECK(loader.next().inputs.front() == 14);
    CHECK(loader.next().from == LoaderPosition{1, 2, 0});
}

TEST_CASE("shuffled: rows and their order depend on the seed alone, not on ranks, micro-batches and accumulation",
          "[data_loader]") {
    const TemporaryFolder folder;
    const ShardSet shards = counting_shards(folder, {500, 333, 7, 411});  // 62 + 41 + 0 + 51 sequences of 8
    const int sequences = 62 + 41 + 51, rows_per_step = 24, steps = 20;   // over three epochs
    const auto reference = global_rows(shards, shuffled(options(24, 8, 0, 1, 1), 7), steps);
    REQUIRE(reference.size() == std::size_t(rows_per_step * steps));
    const auto [world, micro_batch, micro_batches] =
        GENERATE(table<int, int, int>({{1, 1, 24}, {2, 12, 1}, {4, 2, 3}, {3, 8, 1}, {8, 1, 3}, {2, 3, 4}}));
    CAPTURE(world, micro_batch, micro_batches);
    CHECK((global_rows(shards, shuffled(options(micro_batch, 8, 0, world, micro_batches), 7), steps) == reference));

    // Every sequence exactly once per epoch, each epoch in another order.
    std::set<Row> all;
    std::vector<std::vector<Row>> epochs;
    for (int e = 0; e < 3; ++e) {
        epochs.emplace_back(reference.begin() + e * sequences, reference.begin() + (e + 1) * sequences);
        const std::set<Row> distinct(epochs[e].begin(), epochs[e].end());
        CHECK(distinct.size() == std::size_t(sequences));
        all.insert(distinct.begin(), distinct.end());
    }
    CHECK(all.size() == std::size_t(sequences));
    CHECK((epochs[0] != epochs[1] && epochs[1] != epochs[2] && epochs[0] != epochs[2]));
    // the sequences are those that sequential reading would meet:
    CHECK(all.begin()->front() == 0);
    CHECK(all.rbegin()->back() == 500 + 333 + 7 + 51 * 8 - 1);  // multiples of 8 from each shard's first token
    CHECK((global_rows(shards, shuffled(options(24, 8, 0, 1, 1), 8), steps) != reference));

    DataLoader loader(shards, shuffled(options(24, 8, 0, 1, 1), 7));
    CHECK(loader.dropped_tokens() == (500 - 497) + (333 - 329) + 7 + (411 - 409));
    CHECK(loader.steps_in(3) == 19);  // 462 rows
    for (int i = 0; i < 7; ++i) loader.next();
    CHECK(loader.state().next == LoaderPosition{1, 0, 7 * 24 - sequences});
}

TEST_CASE("shuffled: a micro-step may be the whole epoch", "[data_loader]") {
    const TemporaryFolder folder;
    const ShardSet shards = counting_shards(folder, {31});
    const auto rows = global_rows(shards, shuffled(options(5, 3, 0, 2), 1), 3);
    for (int e = 0; e < 3; ++e) CHECK(std::set<Row>(rows.begin() + e * 10, rows.begin() + (e + 1) * 10).size() == 10);
    CHECK_THROWS_WITH(DataLoader(shards, shuffled(options(11, 3, 0, 1), 1)),
                      Contains("31 tokens") && Contains("is 10; expected at least 11"));
}

TEST_CASE("a restored loader goes on exactly, prefetched or not", "[data_loader]") {
    const TemporaryFolder folder;
    const ShardSet shards = counting_shards(folder, {300, 200});
    const bool shuffle = GENERATE(false, true), prefetch_before = GENERATE(false, true),
               prefetch_after = GENERATE(false, true);
    CAPTURE(shuffle, prefetch_before, prefetch_after);
    DataLoaderOptions before = options(2, 8, 1, 2), after = before;
    if (shuffle) before.shuffle_seed = after.shuffle_seed = 3;
    before.prefetch = prefetch_before;
    after.prefetch = prefetch_after;

    DataLoader uninterrupted(shards, before);
    for (int i = 0; i < 40; ++i) {  // over two epochs
        const DataLoaderState state = uninterrupted.state();
        const Batch expected = uninterrupted.next();
        DataLoader resumed(shards, after);
        for (int read = 0; read < i % 3; ++read) resumed.next();  // also where it had read elsewhere before
        resumed.restore(state);
        CHECK(resumed.state() == state);
        const Batch& batch = resumed.next();
        CHECK(batch.from == expected.from);
        REQUIRE(batch.inputs == expected.inputs);
        REQUIRE(batch.targets == expected.targets);
        CHECK(resumed.state() == uninterrupted.state());
    }
}

TEST_CASE("a shuffled state goes on with other ranks and micro-batches, a sequential one with any shape",
          "[data_loader]") {
    const TemporaryFolder folder;
    const ShardSet shards = counting_shards(folder, {300, 200});
    std::vector<Row> expected, rows;
    DataLoader first(shards, shuffled(options(12, 4, 0, 1), 3)), second(shards, shuffled(options(4, 4, 0, 1), 3));
    first.next();
    second.restore(first.state());
    append_rows(expected, first.next(), 4);
    for (int i = 0; i < 3; ++i) append_rows(rows, second.next(), 4);
    CHECK(rows == expected);

    DataLoader narrow(shards, options(1, 9, 0, 1)), wide(shards, options(4, 25, 0, 1));
    for (int i = 0; i < 25; ++i) narrow.next();
    wide.restore(narrow.state());
    CHECK(wide.next().from == LoaderPosition{0, 1, 0});  // token 225 of 300: 100 more and a target no longer fit
}

TEST_CASE("a state of other data, another order or no place at all is refused", "[data_loader]") {
    const TemporaryFolder folder;
    const ShardSet shards = counting_shards(folder, {300, 200});
    DataLoader sequential(shards, options(2, 8, 0, 1)), shuffled_loader(shards, shuffled(options(2, 8, 0, 1), 3));
    DataLoaderState state = sequential.state();
    const auto refused = [&](DataLoader& loader, const std::string& words) {
        CHECK_THROWS_WITH(loader.restore(state), Contains(words));
    };
    SECTION("tokens") { state.tokens = 501; refused(sequential, "number of training tokens is 500; expected 501"); }
    SECTION("shards") { state.shards = 3; refused(sequential, "number of training shards is 2; expected 3"); }
    SECTION("order") { refused(shuffled_loader, "order of the training data is shuffled; expected sequential"); }
    SECTION("seed") {
        state = shuffled_loader.state();
        state.seed = 4;
        refused(shuffled_loader, "order is 3; expected 4");
    }
    SECTION("sequence length") {
        state = DataLoader(shards, shuffled(options(2, 7, 0, 1), 3)).state();
        refused(shuffled_loader, "number of training sequences is 61; expected 70");
    }
    SECTION("epoch") { state.next.epoch = -1; refused(sequential, "epoch"); }
    SECTION("shard") { state.next.shard = 2; refused(sequential, "0 to 1"); }
    SECTION("position") { state.next.position = 300; refused(sequential, "0 to 299"); }
    SECTION("shuffled position") {
        state = shuffled_loader.state();
        state.next.position = 61;
        refused(shuffled_loader, "0 to 60");
    }
}

TEST_CASE("data too short for one micro-step, and impossible shapes, are refused", "[data_loader]") {
    const TemporaryFolder folder;
    const ShardSet shards = counting_shards(folder, {60, 48});
    CHECK_NOTHROW(DataLoader(shards, options(1, 59, 0, 1)));
    CHECK_THROWS_WITH(
        DataLoader(shards, options(3, 10, 0, 2)),
        Contains("is 60; expected at least 61") && Contains("2 ranks * micro-batch 3 * sequence length 10 + 1"));
    CHECK_THROWS_AS(DataLoader(shards, options(1, 1000, 0, 1)), Error);
    CHECK_THROWS_AS(DataLoader(shards, shuffled(options(1, 60, 0, 1), 1)), Error);
    CHECK_THROWS_WITH(DataLoader(shards, options(0, 1, 0, 1)), Contains("micro-batch is 0"));
    CHECK_THROWS_WITH(DataLoader(shards, options(1, 0, 0, 1)), Contains("sequence length is 0"));
    CHECK_THROWS_WITH(DataLoader(shards, options(1, 1, 0, 0)), Contains("number of ranks is 0"));
    CHECK_THROWS_WITH(DataLoader(shards, options(1, 1, 2, 2)), Contains("rank is 2; expected 0 to 1"));
    CHECK_THROWS_WITH(DataLoader(shards, options(1, 1, -1, 2)), Contains("rank is -1"));
    CHECK_THROWS_WITH(DataLoader(shards, options(1, 1, 0, 1, 0)), Contains("micro-batches per step is 0"));
    CHECK_THROWS_AS(DataLoader(shards, options(1 << 30, 1 << 30, 0, 1)), Error);
    CHECK_THROWS_WITH(DataLoader(shards, options(1 << 15, 1 << 15, 0, 1 << 30, 1 << 30)),
                      Contains("micro-batches per step is 1073741824"));
}

TEST_CASE("offsets past 2^31 bytes are read where they lie", "[data_loader]") {
    const TemporaryFolder folder;
    constexpr std::int64_t kTokens = 0x7fffffff;  // 4 GiB of zeros that occupy no disk, but for three ids
    const bool shuffle = GENERATE(false, true);
    CAPTURE(shuffle);
    DataLoaderState state;
    std::int64_t offset = kTokens - 3;
    if (shuffle) {
        const Permutation permutation((kTokens - 1) / 2, 9, 0);
        while (2 * permutation(state.next.position) < kTokens / 4 * 3) ++state.next.position;
        offset = 2 * permutation(state.next.position);
    } else {
        state.next.position = offset;
    }

    ShardBytes sparse({});
    sparse.header[2] = std::int32_t(kTokens);
    const std::string path = sparse.write(folder / "s_0.bin");
    std::filesystem::resize_file(path, std::uintmax_t(1024 + 2 * kTokens));
    const std::uint16_t ids[] = {11, 12, 13};
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1024 + 2 * offset).write(reinterpret_cast<const char*>(ids), sizeof ids);
    file.close();

    const ShardSet shards(path);
    DataLoader loader(shards, shuffle ? shuffled(options(1, 2, 0, 1), 9) : options(1, 2, 0, 1));
    const LoaderPosition place = state.next;
    state = loader.state();
    state.next = place;
    loader.restore(state);
    const Batch& batch = loader.next();
    CHECK(batch.inputs == Row{11, 12});
    CHECK(batch.targets == Row{12, 13});
    CHECK(loader.state().next == (shuffle ? LoaderPosition{0, 0, place.position + 1} : LoaderPosition{1, 0, 0}));
}

TEST_CASE("the first token of a document can be left out of the targets", "[data_loader]") {
    const TemporaryFolder folder;
    ShardBytes({9, 1, 2, 9, 3, 9, 9, 4, 5}, 10, 9).write(folder / "s_0.bin");
    const ShardSet shards(folder / "s_0.bin");
    DataLoaderOptions o = options(2, 4, 0, 1);
    o.mask_document_start = true;
    DataLoader loader(shards, o);
    const Batch& batch = loader.next();
    CHECK(batch.inputs == Row{9, 1, 2, 9, 3, 9, 9, 4});
    CHECK(batch.targets == Row{kIgnoreTarget, 2, 9, kIgnoreTarget, 9, kIgnoreTarget, kIgnoreTarget, 5});
    CHECK(batch.valid_targets == 4);
}

TEST_CASE("padded: every token of every shard is a target once an epoch, whoever reads it", "[data_loader]") {
    const TemporaryFolder folder;
    // Of 2 * 2 * 5 = 20 positions a micro-step: exactly three; one target more; fewer than one row; a single token,
    // which has no target.
    const ShardSet shards = counting_shards(folder, {61, 62, 4, 1, 33});
    const bool shuffle = GENERATE(false, true), prefetch = GENERATE(false, true);
    const std::int64_t targets = 60 + 61 + 3 + 0 + 32, rows = 12 + 13 + 1 + 0 + 7;
    std::multiset<std::int32_t> seen;
    std::int64_t fewest = 10;
    for (int rank = 0; rank < 2; ++rank) {
        DataLoaderOptions o = options(2, 5, rank, 2);
        o.pad = true, o.prefetch = prefetch;
        if (shuffle) o.shuffle_seed = 3;
        DataLoader loader(shards, o);
        CHECK(loader.dropped_tokens() == 1);
        // Shuffled, 33 rows fill eight micro-steps of four rows, and the first row of the ninth; so read four epochs of
        // them.
        const int epochs = shuffle ? 4 : 1, steps = shuffle ? int(rows) : 3 + 4 + 1 + 2;
        CHECK(loader.steps_in(epochs) == steps);
        for (int step = 0; step < steps; ++step) {
            const Batch& batch = loader.next();
            std::int64_t valid = 0;
            for (std::size_t i = 0; i < batch.inputs.size(); ++i) {
                if (batch.targets[i] == kIgnoreTarget) {
                    CHECK(batch.inputs[i] == 0);
                    continue;
                }
                CHECK(batch.targets[i] == batch.inputs[i] + 1);
                seen.insert(batch.targets[i]);
                ++valid;
            }
            CHECK(batch.valid_targets == valid);
            fewest = std::min(fewest, valid);
        }
        CHECK(loader.state().next.epoch == epochs);
        DataLoader other(shards, options(2, 5, rank, 2));
        if (!shuffle)
            CHECK_THROWS_WITH(other.restore(loader.state()),
                              Contains("ends of the training shards") && Contains("padded"));
    }
    const std::size_t times = shuffle ? 4 : 1;
    CHECK(seen.size() == std::size_t(targets) * times);
    std::int32_t id = 0;
    for (const int length : {61, 62, 4, 1, 33}) {
        CHECK(seen.count(id++) == 0);  // the first token of a shard is nobody's target
        for (int i = 1; i < length; ++i) CHECK(seen.count(id++) == times);
    }
    if (!shuffle) CHECK(fewest == 0);  // a rank without a target
}

TEST_CASE("prefetched batches are the same batches", "[data_loader]") {
    const TemporaryFolder folder;
    const ShardSet shards = counting_shards(folder, {3000, 2000});
    const bool shuffle = GENERATE(false, true);
    CAPTURE(shuffle);
    DataLoaderOptions plain = options(3, 16, 0, 2), ahead = plain;
    if (shuffle) plain.shuffle_seed = ahead.shuffle_seed = 11;
    ahead.prefetch = true;
    DataLoader a(shards, plain), b(shards, ahead);
    for (int i = 0; i < 300; ++i) {
        CHECK(a.state() == b.state());
        const Batch &expected = a.next(), &batch = b.next();
        REQUIRE(batch.inputs == expected.inputs);
        REQUIRE(batch.targets == expected.targets);
        CHECK(batch.from == expected.from);
    }
    for (int i = 0; i < 100; ++i) {  // ended at once, in every stage of its work
        DataLoader loader(shards, ahead);
        if (i % 2) loader.next();
    }
}

TEST_CASE("a bad id reaches the caller of next(), again and again, and only when it is that batch's turn",
          "[data_loader]") {
    const TemporaryFolder folder;
    ShardBytes bytes(std::vector<std::uint16_t>(41, 1), 257, 256);
    bytes.ids[25] = 300;
    bytes.write(folder / "s_0.bin");
    const ShardSet shards(folder / "s_0.bin");
    DataLoaderOptions o = options(1, 10, 0, 1);
    o.prefetch = GENERATE(false, true);
    CAPTURE(o.prefetch);
    DataLoader loader(shards, o);
    const DataLoaderState start = loader.state();
    loader.next();
    loader.next();
    const DataLoaderState before = loader.state();
    for (int i = 0; i < 3; ++i) CHECK_THROWS_WITH(loader.next(), Contains("id of token 25 is 300"));
    CHECK(loader.state() == before);
    loader.restore(start);
    CHECK(loader.next().from == LoaderPosition{0, 0, 0});
    loader.next();  // the bad batch is being prefetched: neither restoring nor the end trips over it
    DataLoaderState behind = before;
    behind.next.position = 30;
    loader.restore(behind);
    CHECK(loader.next().from.position == 30);
}
