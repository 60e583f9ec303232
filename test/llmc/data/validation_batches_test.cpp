// validation_batches_test.cpp - every target occurs exactly once and in the same context, for any number of ranks
#include "kernels/device/types.h"
#include "llmc/data/validation_batches.h"
#include "test/support/shard_support.h"

using namespace llmc;
using namespace test;
using kernels::kIgnoreTarget;
using Row = std::vector<std::int32_t>;

TEST_CASE("validation: the same targets exactly once, for any batch and number of ranks", "[validation_batches]") {
    const ScratchFolder folder;
    const ShardSet shards = counting_shards(folder, {100, 1, 37, 64});  // 99 + 0 + 36 + 63 = 198 targets
    const int asked = GENERATE(1, 10, 16, 99, 100, 110, 135, 136, 197, 198, 199, 100000);
    const bool spread = GENERATE(true, false);
    const auto [world, micro_batch] = GENERATE(table<int, int>({{1, 1}, {1, 7}, {2, 2}, {3, 1}, {4, 5}, {8, 16}}));
    const int seq_len = 10;
    CAPTURE(asked, world, micro_batch, spread);
    std::vector<std::pair<int, int>> all, rows;  // of all data, and of a validation: the first id and the targets
    for (const auto& [first, size] : {std::pair{0, 100}, {100, 1}, {101, 37}, {138, 64}})
        for (int row = 0; row < size - 1; row += seq_len)
            all.emplace_back(first + row, std::min(seq_len, size - 1 - row));
    const int taken = std::min(asked, 198);
    int parts = spread && asked < 198 ? (asked + seq_len - 1) / seq_len : int(all.size()), left = asked;
    while (true) {
        for (int i = 0; i < parts && left > 0; ++i) {
            rows.push_back(all[std::size_t((2 * i + 1) * int(all.size()) / (2 * parts))]);
            rows.back().second = std::min(rows.back().second, left);
            left -= rows.back().second;
        }
        if (left == asked - taken) break;
        parts = std::min(parts + (left + seq_len - 1) / seq_len, int(all.size()));  // some rows are shorter
        rows.clear();
        left = asked;
    }

    std::vector<std::int32_t> targets;
    std::int64_t valid = 0;
    std::set<Row> contexts;
    for (int rank = 0; rank < world; ++rank) {
        const auto batches_of = [&](int of) {
            return ValidationBatches(shards.shards(), asked, {.micro_batch = micro_batch, .seq_len = seq_len,
                                                              .rank = of, .world = world}, false, spread);
        };
        ValidationBatches batches = batches_of(rank);
        CHECK((batches.targets() == taken && batches.taken() == taken && batches.available() == 198));
        CHECK(batches.size() == batches_of(0).size());
        for (std::int64_t j = 0; j < batches.size(); ++j) {
            const Batch& batch = batches[j];
            valid += batch.valid_targets;
            for (std::size_t i = 0; i < batch.inputs.size(); ++i) {
                const std::int32_t input = batch.inputs[i], target = batch.targets[i];
                if (target == kIgnoreTarget) {
                    REQUIRE(input == 0);
                    REQUIRE((i % seq_len == 9 || batch.targets[i + 1] == kIgnoreTarget));  // only at the end of a row
                } else {
                    REQUIRE(target == input + 1);
                    targets.push_back(target);
                    if (i % seq_len == 0) contexts.insert({input, target});
                }
            }
        }
    }
    CHECK(valid == taken);
    std::sort(targets.begin(), targets.end());
    std::vector<std::int32_t> expected;
    std::set<Row> expected_contexts;  // rows start at the same tokens for any number of ranks
    for (const auto& [first, size] : rows) {
        expected_contexts.insert({first, first + 1});
        for (int id = first + 1; id <= first + size; ++id) expected.push_back(id);
    }
    CHECK(targets == expected);
    CHECK(contexts == expected_contexts);
}

TEST_CASE("validation: batches repeat, can be read in any order, and bad ones are refused", "[validation_batches]") {
    const ScratchFolder folder;
    const ShardSet shards = counting_shards(folder, {100, 1});
    ValidationBatches batches(shards.shards(), 59, {.micro_batch = 2, .seq_len = 10});  // 6 of 10 rows
    REQUIRE(batches.size() == 3);
    const Batch last = batches[2], first = batches[0];
    CHECK(first.inputs.front() == 0);
    CHECK((first.inputs[10] == 20 && last.inputs[0] == 70 && last.inputs[10] == 90));
    CHECK(batches[2].inputs == last.inputs);
    const ShardSet one_token(folder / "s_1.bin");
    CHECK_THROWS_WITH(ValidationBatches(one_token.shards(), 10, {.micro_batch = 1, .seq_len = 4}),
                      Contains("is 1; expected at least 2") && Contains(" than in "));
}

TEST_CASE("validation: first tokens of documents can be excluded, for any batch and number of ranks",
          "[validation_batches]") {
    const ScratchFolder folder;
    ShardBytes({9, 1, 9, 9, 2, 3}, 10, 9).write(folder / "s_0.bin");
    ShardBytes({9, 4, 5, 9}, 10, 9).write(folder / "s_1.bin");
    ShardBytes({9, 9}, 10, 9).write(folder / "t_0.bin");
    const ShardSet shards(folder / "s_*.bin"), starts(folder / "t_0.bin");
    const auto [world, micro_batch] = GENERATE(table<int, int>({{1, 1}, {1, 7}, {2, 2}, {3, 1}}));
    const auto [asked, expected] = GENERATE(table<int, int>({{1, 0}, {2, 1}, {4, 1}, {5, 2}, {6, 3}, {7, 3}, {8, 4},
                                                             {9, 4}}));  // the last: more than available
    CAPTURE(world, micro_batch, asked);
    std::int64_t valid = 0, bytes = 0, all_bytes = 0;
    std::vector<std::uint16_t> as_id(10);  // id i has i bytes
    std::iota(as_id.begin(), as_id.end(), std::uint16_t(0));
    for (int rank = 0; rank < world; ++rank) {
        const BatchShape shape{.micro_batch = micro_batch, .seq_len = 3, .rank = rank, .world = world};
        if (expected == 0) {
            CHECK_THROWS_WITH(ValidationBatches(shards.shards(), asked, shape, true),
                              Contains("targets that --mask-document-start leaves of 1 is 0; expected at least 1"));
            continue;
        }
        ValidationBatches batches(shards.shards(), asked, shape, true);
        CHECK(batches.targets() == expected);
        CHECK(batches.size() == ValidationBatches(shards.shards(), asked, shape).size());
        for (std::int64_t j = 0; j < batches.size(); ++j) {
            const Batch masked = batches[j], all = ValidationBatches(shards.shards(), asked, shape)[j];
            CHECK(masked.inputs == all.inputs);
            for (std::size_t i = 0; i < masked.inputs.size(); ++i)
                CHECK(masked.targets[i] == (masked.inputs[i] == 9 ? kIgnoreTarget : all.targets[i]));
            valid += masked.valid_targets;
            for (const auto target : masked.targets) bytes += target == kIgnoreTarget ? 0 : target;
            for (const auto target : all.targets) all_bytes += target == kIgnoreTarget ? 0 : target;
        }
    }
    CHECK(valid == expected);
    if (expected > 0) {
        CHECK(ValidationBatches(shards.shards(), asked, {.seq_len = 3}, true).target_bytes(as_id) == bytes);
        CHECK(ValidationBatches(shards.shards(), asked, {.seq_len = 3}).target_bytes(as_id) == all_bytes);
    }
    CHECK_THROWS_WITH(ValidationBatches(starts.shards(), 5, {.micro_batch = 1, .seq_len = 3}, true), Contains("is 0"));
}

TEST_CASE("validation: each pattern is a set, with rows in proportion to its size or weight", "[validation_batches]") {
    const ScratchFolder folder;
    counting_shards(folder, {301, 37, 64});
    const ShardSet shards({folder / "s_0.bin", folder / "s_[12].bin"});  // 300 targets, 36 + 63
    const BatchShape shape{.micro_batch = 2, .seq_len = 10};
    using Weights = std::vector<std::int64_t>;
    const auto [tokens, weights, first, second] = GENERATE(table<std::int64_t, Weights, int, int>({
        {1000, {}, 300, 99}, {399, {3, 1}, 300, 99},  // all
        {200, {}, 150, 50}, {200, {1, 1}, 100, 99},   // 15 of 20 rows, 5; 10 rows, 10
        {40, {3, 1}, 30, 10}, {1, {}, 10, 10}}));     // a row at least
    CAPTURE(tokens, weights);
    std::vector<ValidationSet> sets = validation_sets(shards, weights, tokens, shape, false, true);
    REQUIRE(sets.size() == 2);
    CHECK((sets[0].pattern == folder / "s_0.bin" && sets[1].pattern == folder / "s_[12].bin"));
    CHECK((sets[0].batches.taken() == first && sets[1].batches.taken() == second));
    const double share = weights.empty() ? 0 : double(weights[0]) / double(weights[0] + weights[1]);
    CHECK(sets[0].weight == (weights.empty() ? 1 : share / first));
    CHECK(sets[1].weight == (weights.empty() ? 1 : (1 - share) / second));
    const ShardSet alone(folder / "s_[12].bin");
    ValidationBatches batches(alone.shards(), second, shape);
    REQUIRE(sets[1].batches.size() == batches.size());
    for (std::int64_t j = 0; j < batches.size(); ++j) CHECK(sets[1].batches[j].targets == batches[j].targets);
    CHECK(validation_sets(alone, {}, 15, shape, false, true)[0].batches.taken() == 15);  // one set has no whole rows
}
