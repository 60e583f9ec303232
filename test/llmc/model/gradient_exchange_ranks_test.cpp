// gradient_exchange_ranks_test.cpp - buckets, shards and tiles cover every parameter once (sums of gradients:
// data_parallel_ranks_test.cpp)
#include "kernels/gradient_copy.h"
#include "test/support/rank_support.h"

using namespace llmc;
using namespace test;

TEST_CASE("buckets follow the backward pass, and every element has one owner", "[ranks]") {
    const int layers = GENERATE(1, 2, 5), ranks = GENERATE(1, 2, 3, 8, 200);
    const bool whole_matrices = GENERATE(false, true);
    CAPTURE(layers, ranks, whole_matrices);
    ModelConfig config = kTinyModel;
    config.layers = layers;
    const ParameterTable table(config);
    std::vector<int> owners(std::size_t(table.elements()));
    for (int rank = 0; rank < ranks; ++rank) {
        const GradientBuckets buckets(table, {.stage = 1, .rank = rank, .ranks = ranks,
                                              .whole_matrices = whole_matrices});
        REQUIRE(buckets.size() == layers + 1);
        std::int64_t end = table.elements();
        for (const GradientBucket& bucket : buckets.all()) {
            REQUIRE(bucket.flat.end() == end);  // from the end of the array to its start
            end = bucket.flat.first;
            std::int64_t next = 0;
            for (const BucketPart& part : bucket.parts) {
                REQUIRE(part.whole.first == next);
                next += part.whole.size;
                REQUIRE((part.whole.first % 32 == 0 && part.shard.first % 32 == 0 && part.shard.size % 32 == 0));
                REQUIRE((!part.matrix || part.shard.size == (buckets.owner(part) == rank ? part.whole.size : 0)));
            }
            REQUIRE(next == bucket.flat.size);
            REQUIRE(bucket.parts.size() == (whole_matrices && &bucket != &buckets.all().back() ? 11 : 1));
        }
        REQUIRE(end == 0);
        int before = buckets.size();  // in the order of the forward pass
        std::int64_t matrices = 0, total = 0;
        std::vector<int> places(std::size_t(buckets.owned_elements()));
        for (const OwnedShard& shard : buckets.owned()) {
            REQUIRE((*shard.bucket == before || *shard.bucket == before - 1));
            before = *shard.bucket;
            const GradientBucket& bucket = buckets[before];
            REQUIRE((shard.flat.first >= bucket.flat.first && shard.flat.end() <= bucket.flat.end()));
            const bool is_matrix = shard.owned.first >= buckets.elements_outside_matrices() && shard.flat.size > 0;
            REQUIRE(shard.matrix.has_value() == is_matrix);
            if (shard.matrix) matrices += buckets.matrices()[std::size_t(*shard.matrix)].size();
            total += shard.flat.size;
            for (int& owner : shard.flat.of(std::span(owners))) ++owner;
            for (int& place : shard.owned.of(std::span(places))) ++place;
        }
        REQUIRE(before == 0);
        REQUIRE(total == buckets.owned_elements());
        REQUIRE(matrices == total - buckets.elements_outside_matrices());
        REQUIRE(std::ranges::all_of(places, [](int count) { return count == 1; }));
        const GradientBuckets all(table, {.stage = 0, .rank = rank, .ranks = ranks, .whole_matrices = whole_matrices});
        REQUIRE(all.owns_all() == !whole_matrices);
        REQUIRE(all.owned_elements() - all.elements_outside_matrices() == matrices);
        if (!whole_matrices) {
            REQUIRE(all.owned().size() == 1);
            REQUIRE((all.owned()[0].flat.first == 0 && all.owned()[0].owned.first == 0));
            REQUIRE(all.owned_elements() == table.elements());
        }
        for (int layer = 0; layer < layers; ++layer)
            REQUIRE(buckets.of_tensor(table.block(layer).qkv.weight) == layers - 1 - layer);
        REQUIRE(buckets.of_tensor(table.final_ln().bias) == 0);
        REQUIRE(buckets.of_tensor(table.token_table()) == buckets.embeddings());
        REQUIRE(buckets.of_tensor(table.position_table()) == buckets.embeddings());
    }
    CHECK(std::ranges::all_of(owners, [](int owner) { return owner == 1; }));
}

TEST_CASE("matrices are those of the blocks, query, key and value apart, and the work is divided evenly", "[ranks]") {
    ModelConfig config = kTinyModel;
    config.layers = 12;
    const ParameterTable table(config);
    const int channels = config.channels, ranks = GENERATE(1, 2, 3, 5, 8);
    const std::vector<BlockMatrix> matrices = block_matrices(table, ranks);
    REQUIRE(matrices.size() == 6 * 12);
    const std::vector<std::pair<int, int>> shapes{{channels, channels}, {channels, channels}, {channels, channels},
                                                  {channels, channels}, {4 * channels, channels},
                                                  {channels, 4 * channels}};
    std::vector<double> work(static_cast<std::size_t>(ranks));
    for (std::size_t i = 0; i < matrices.size(); ++i) {
        CHECK(std::pair(matrices[i].rows, matrices[i].columns) == shapes[i % 6]);
        work[std::size_t(matrices[i].owner)] += matrices[i].cost();
    }
    const BlockParameters& block = table.block(3);
    const auto offset = [&](int tensor) { return table.tensors()[std::size_t(tensor)].offset; };
    CHECK(matrices[18].first == offset(block.qkv.weight));
    CHECK(matrices[20].first == offset(block.qkv.weight) + 2 * channels * channels);
    CHECK(matrices[23].first == offset(block.mlp_proj.weight));
    const auto [least, most] = std::ranges::minmax(work);
    CHECK(most - least <= matrices[0].cost());
}

TEST_CASE("tiles of all modules cover each bucket or shard once, each in its own module", "[ranks]") {
    const TilesOf of = GENERATE(TilesOf::buckets, TilesOf::shards);
    const int stage = GENERATE(0, 1, 2);
    const bool shards_only = of == TilesOf::shards, whole_matrices = GENERATE(false, true);
    CAPTURE(stage, shards_only, whole_matrices);
    const ParameterTable table(kTinyModel);
    std::vector<std::string> module_of(std::size_t(table.elements()));
    for (int rank = 0; rank < 3; ++rank) {
        const GradientBuckets buckets(table, {.stage = stage, .rank = rank, .ranks = 3,
                                              .whole_matrices = whole_matrices});
        // The elements of the flat array that are in the array of reduced gradients.
        std::vector<std::int64_t> places(std::size_t(buckets.owned_elements()));
        if (stage == 2)
            for (const OwnedShard& shard : buckets.owned())
                std::iota(shard.owned.of(std::span(places)).begin(), shard.owned.of(std::span(places)).end(),
                          shard.flat.first);
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
                const std::int64_t tile = tiles.tiles[i].first,
                                   first = !shards_only ? buckets[bucket].flat.first + tile
                                           : stage == 2 ? places[std::size_t(tile)]
                                                        : tile;
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
