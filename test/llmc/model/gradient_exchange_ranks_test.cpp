// gradient_exchange_ranks_test.cpp - buckets and shards cover every parameter once, and sums of integers are exact for
// any division of the tokens among ranks and micro-batches
#include "kernels/device/memory.h"

#include <algorithm>
#include "kernels/gradient_copy.h"
#include "test/support/processes.h"
#include "test/support/rank_support.h"

using namespace llmc;
using namespace test;

TEST_CASE("buckets follow the backward pass and shards cover every element once", "[ranks]") {
    const int layers = GENERATE(1, 2, 5), ranks = GENERATE(1, 2, 3, 8, 200);
    CAPTURE(layers, ranks);
    ModelConfig config = kTinyModel;
    config.layers = layers;
    const ParameterTable table(config);
    std::vector<int> owners(std::size_t(table.elements()));
    std::vector<std::int64_t> sizes;
    for (int rank = 0; rank < ranks; ++rank) {
        const GradientBuckets buckets(table, {.stage = 1, .rank = rank, .ranks = ranks});
        REQUIRE(buckets.size() == layers + 1);
        std::int64_t end = table.elements(), shards = 0;
        for (const GradientBucket& bucket : buckets.all()) {
            REQUIRE(bucket.first + bucket.size == end);  // from the end of the array to its start
            end = bucket.first;
            REQUIRE(bucket.shard_offset == shards);
            shards += bucket.shard.size;
            REQUIRE((bucket.first % 32 == 0 && bucket.shard.first % 32 == 0 && bucket.shard.size % 32 == 0));
        }
        REQUIRE(buckets.owned_elements() == shards);
        int expected = buckets.size();  // in the order of the forward pass
        for (const OwnedShard& shard : buckets.owned()) {
            REQUIRE(shard.bucket == --expected);
            REQUIRE(shard.first == buckets[expected].first + buckets[expected].shard.first);
            REQUIRE(shard.size == buckets[expected].shard.size);
            REQUIRE(shard.offset == buckets[expected].shard_offset);
            for (int& owner : shard.in_flat(std::span(owners))) ++owner;
        }
        REQUIRE(expected == 0);
        const GradientBuckets all(table, {.stage = 0, .rank = rank, .ranks = ranks});
        REQUIRE(all.owned().size() == 1);
        REQUIRE((all.owned()[0].first == 0 && all.owned()[0].offset == 0 && !all.owned()[0].bucket));
        REQUIRE(all.owned_elements() == table.elements());
        REQUIRE(end == 0);
        REQUIRE(buckets.shard_elements() == shards);
        for (int layer = 0; layer < layers; ++layer)
            REQUIRE(buckets.of_tensor(table.block(layer).qkv.weight) == layers - 1 - layer);
        REQUIRE(buckets.of_tensor(table.final_ln().bias) == 0);
        REQUIRE(buckets.of_tensor(table.token_table()) == buckets.embeddings());
        REQUIRE(buckets.of_tensor(table.position_table()) == buckets.embeddings());
        sizes.push_back(shards);
    }
    CHECK(std::all_of(owners.begin(), owners.end(), [](int owner) { return owner == 1; }));
    CHECK(std::accumulate(sizes.begin(), sizes.end(), std::int64_t(0)) == table.elements());
}

TEST_CASE("tiles of all modules cover each bucket or shard once, each in its own module", "[ranks]") {
    const TilesOf of = GENERATE(TilesOf::buckets, TilesOf::shards);
    const bool shards_only = of == TilesOf::shards;
    const ParameterTable table(kTinyModel);
    std::vector<std::string> module_of(std::size_t(table.elements()));
    for (int rank = 0; rank < 3; ++rank) {
        const GradientBuckets buckets(table, {.stage = 1, .rank = rank, .ranks = 3});
        const NormModules modules(table, buckets);
        const NormTiles tiles(modules, buckets, of);
        REQUIRE(modules.names.size() == 9);
        REQUIRE(tiles.bucket_start.size() == 4);
        REQUIRE(tiles.module_start.size() == 10);
        for (int bucket = 0; bucket < 3; ++bucket)
            for (std::size_t i = tiles.bucket_start[std::size_t(bucket)];
                 i < tiles.bucket_start[std::size_t(bucket) + 1]; ++i) {
                const auto& starts = tiles.module_start;
                const auto module = std::upper_bound(starts.begin(), starts.end(),
                                                     std::int32_t(i)) - starts.begin() - 1;
                const std::int64_t first = buckets[bucket].first + (shards_only ? buckets[bucket].shard.first : 0) +
                                           tiles.tiles[i].first;
                for (std::int64_t element = first; element < first + tiles.tiles[i].size; ++element) {
                    if (shards_only) REQUIRE(module_of[std::size_t(element)].empty());
                    module_of[std::size_t(element)] = modules.names[std::size_t(module)];
                }
            }
    }
    CHECK(std::none_of(module_of.begin(), module_of.end(), [](const std::string& name) { return name.empty(); }));
    const auto at = [&](int tensor) { return module_of[std::size_t(table.tensors()[std::size_t(tensor)].offset)]; };
    CHECK(at(table.token_table()) == "wte");
    CHECK(at(table.position_table()) == "wpe");
    CHECK(at(table.block(1).ln2.bias) == "h.1.ln");
    CHECK(at(table.block(0).attn_proj.bias) == "h.0.attn");
    CHECK(at(table.block(1).mlp_proj.bias) == "h.1.mlp");
    CHECK(at(table.final_ln().bias) == "ln_f");
}

TEST_CASE("gradient_copy refuses invalid arguments", "[ranks][gradient_copy]") {
    device::Array<float> out(32), in(32);
    device::Array<kernels::bf16> narrow(32);
    CHECK_THROWS_WITH((kernels::gradient_copy<float, float>({.out = out.span().first(16), .in = in.span()}, nullptr)),
                      Contains("size of a gradient's copy is 16"));
    CHECK_THROWS_WITH((kernels::gradient_copy<float, float>({.out = out.span().first(8),
                                                             .in = in.span().first(8)}, nullptr)),
                      Contains("a multiple of 16"));
    CHECK_THROWS_WITH((kernels::gradient_copy<kernels::bf16, float>({.out = narrow.span(), .in = in.span(),
                                                                     .accumulate = true}, nullptr)),
                      Contains("accumulate into is bf16; expected fp32"));
}

// Replaces the model: every token has a vector of small integers as its gradient. All partial sums are integers below
// 2^24 times 2^-8, so fp32 adds them exactly in any order, and any difference is an error of the exchange, not
// rounding.
namespace {

struct IntegerGradients {
    static constexpr int kTokens = 64;
    ParameterTable table{kTinyModel};
    std::vector<std::int16_t> of_tokens;  // (kTokens, elements)
    std::vector<char> valid;              // rank 1 of 4 has none

    IntegerGradients() : of_tokens(std::size_t(kTokens * table.elements())), valid(kTokens) {
        std::mt19937 engine(5);
        for (std::int16_t& u : of_tokens) u = std::int16_t(int(engine() % 2049) - 1024);
        for (int token = 0; token < kTokens; ++token)
            valid[std::size_t(token)] = token < kTokens / 4 ? token % 3 == 0 : token >= kTokens / 2;
    }

    // Calls use(token, its gradient) for the valid ones of [first, first + count).
    template <class Use> void each(int first, int count, Use&& use) const {
        for (int token = first; token < first + count; ++token)
            if (valid[std::size_t(token)]) use(token, &of_tokens[std::size_t(token * table.elements())]);
    }
    std::int64_t valid_targets(int first = 0, int count = kTokens) const {
        return std::count(valid.begin() + first, valid.begin() + first + count, char(1));
    }

    // Writes gradients like the backward pass of a bucket.
    void write(const GradientExchange& exchange, int bucket, int first, int count, device::StreamRef stream) const {
        for (int tensor = 0; tensor < int(table.tensors().size()); ++tensor) {
            if (exchange.buckets().of_tensor(tensor) != bucket) continue;
            const auto gradient = exchange.gradient(tensor);
            std::vector<float> sum(gradient.size());
            if (exchange.accumulate()) device::copy_to_host(sum.data(), gradient.data(), gradient.size_bytes(), stream);
            device::sync(stream);
            each(first, count, [&](int, const std::int16_t* u) {
                for (std::size_t i = 0; i < sum.size(); ++i)
                    sum[i] += float(u[std::size_t(table.tensors()[std::size_t(tensor)].offset) + i]) / kTokens;
            });
            device::copy_to_device(gradient.data(), sum.data(), gradient.size_bytes(), stream);
            device::sync(stream);
        }
    }

    RankResult run(Communicator& communicator, int micro_batches, int stage) const {
        Context context = make_context(communicator);
        ModelSetup setup = tiny_setup();
        setup.sharding = {.stage = stage, .rank = communicator.rank(), .ranks = communicator.size()};
        const auto model = make_model(setup, ParameterTable(setup.config), context);
        model->load(std::vector<float>(std::size_t(table.elements())));
        const auto policy = make_gradient_exchange(table, {.sharding = setup.sharding}, context);
        GradientExchange& exchange = *policy;
        OptimizerStep optimizer(*model, exchange, {.max_grad_norm = 0}, context);
        const int share = kTokens / communicator.size() / micro_batches, tables = exchange.buckets().embeddings();
        double loss = 0;
        for (int micro = 0; micro < micro_batches; ++micro) {
            const int first = (communicator.rank() * micro_batches + micro) * share;
            exchange.begin({micro, micro_batches, valid_targets(first, share)});
            each(first, share, [&](int token, auto) { loss += token; });
            device::copy_to_device(exchange.loss_sum().data(), &loss, sizeof loss, context.stream);
            exchange.open(tables);  // like the model: the head writes the token table's gradient first
            for (int bucket = 0; bucket <= tables; ++bucket) {
                if (bucket < tables) exchange.open(bucket);
                write(exchange, bucket, first, share, context.stream);
                exchange.complete(bucket);
            }
        }
        optimizer.run(*model, {.learning_rate = 1e-3f, .positions = kTokens});
        RankResult mine;
        mine.scalars = {optimizer.scalars()};
        mine.gradient = reduced_shards(exchange, table, context);
        return mine;
    }

    void check(Partition partition, const RankRunner& how) const {
        std::vector<std::int64_t> want(std::size_t(table.elements()));
        double loss = 0;
        each(0, kTokens, [&](int token, const std::int16_t* u) {
            loss += token;
            for (std::size_t i = 0; i < want.size(); ++i) want[i] += u[i];
        });
        for (const int stage : {0, 1, 2}) {
            CAPTURE(partition.ranks, partition.micro_batches, stage);
            const RunResult got = run_body(how, table, partition.ranks, stage, [&](Communicator& communicator) {
                return run(communicator, partition.micro_batches, stage);
            });
            std::size_t wrong = 0;
            for (const ParameterSpec& spec : table.tensors())
                for (std::int64_t i = spec.offset; i < spec.offset + spec.size(); ++i)
                    wrong += got.gradient[std::size_t(i)] != float(want[std::size_t(i)]) / kTokens;
            CHECK(wrong == 0);
            for (const RankResult& rank : got.ranks) {
                CHECK(rank.scalars[0].valid_targets == valid_targets());
                CHECK(rank.scalars[0].grad_scale == float(double(kTokens) / double(valid_targets())));
                CHECK(rank.scalars[0].loss == loss / double(valid_targets()));
            }
        }
    }
};

}  // namespace

TEST_CASE("integer gradients are summed exactly for every partition", "[ranks]") {
    const IntegerGradients gradients;
    for (const Partition partition : kPartitions) gradients.check(partition, on_threads());
}

TEST_CASE("integer gradients of processes are summed exactly", "[ranks][mpi]") {
    skip_without_mpi();
    for (const int ranks : {2, 4}) check_case("mpi rank: integer gradients", ranks);
}

TEST_CASE("mpi rank: integer gradients", "[.]") {
    const auto communicator = open_communicator();
    const IntegerGradients gradients;
    for (const Partition partition : kPartitions)
        if (partition.ranks == communicator->size()) gradients.check(partition, on_processes(*communicator));
}
