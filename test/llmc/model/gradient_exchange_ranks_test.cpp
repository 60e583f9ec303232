// gradient_exchange_ranks_test.cpp - buckets, shards and tiles cover every parameter once (sums of gradients:
// data_parallel_ranks_test.cpp)
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

TEST_CASE("tiles cover each bucket or shard once", "[ranks]") {
    const TilesOf of = GENERATE(TilesOf::buckets, TilesOf::shards);
    const int stage = GENERATE(0, 1, 2);
    const bool shards_only = of == TilesOf::shards, whole_matrices = GENERATE(false, true);
    CAPTURE(stage, shards_only, whole_matrices);
    const ParameterTable table(kTinyModel);
    std::vector<int> covered(std::size_t(table.elements()));
    for (int rank = 0; rank < 3; ++rank) {
        const GradientBuckets buckets(table, {.stage = stage, .rank = rank, .ranks = 3,
                                              .whole_matrices = whole_matrices});
        // The elements of the flat array that are in the array of reduced gradients.
        std::vector<std::int64_t> places(std::size_t(buckets.owned_elements()));
        if (stage == 2)
            for (const OwnedShard& shard : buckets.owned())
                std::iota(shard.owned.of(std::span(places)).begin(), shard.owned.of(std::span(places)).end(),
                          shard.flat.first);
        const NormTiles tiles(buckets, of);
        REQUIRE(tiles.bucket_start.size() == 4);
        for (int bucket = 0; bucket < 3; ++bucket) {
            const ElementRange& flat = buckets[bucket].flat;
            for (std::size_t i = tiles.bucket_start[std::size_t(bucket)];
                 i < tiles.bucket_start[std::size_t(bucket) + 1]; ++i) {
                const std::int64_t tile = tiles.tiles[i].first,
                                   first = !shards_only ? flat.first + tile
                                           : stage == 2 ? places[std::size_t(tile)]
                                                        : tile;
                REQUIRE((first >= flat.first && first + tiles.tiles[i].size <= flat.end()));
                for (std::int64_t element = first; element < first + tiles.tiles[i].size; ++element)
                    ++covered[std::size_t(element)];
            }
        }
    }
    CHECK(std::ranges::count(covered, shards_only ? 1 : 3) == std::ptrdiff_t(covered.size()));
}
