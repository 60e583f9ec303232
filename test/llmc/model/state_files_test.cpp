// state_files_test.cpp - optimizer state written by any number of ranks can be read by any other number
#include "llmc/model/state_files.h"

#include <numeric>

#include "llmc/model/gradient_buckets.h"
#include "llmc/weights/safetensors.h"
#include "test/support/scratch_folder.h"
#include "test/support/support.h"

using namespace llmc;
using test::Contains;
using test::error_of;

namespace {

// Both moments of the elements that a rank owns, like AdamW::state(), in host memory.
struct Moments {
    explicit Moments(const GradientBuckets& buckets)
        : values(2, std::vector<float>(std::size_t(buckets.owned_elements()))) {
        std::vector<OwnedShard> owned = buckets.owned();
        std::ranges::sort(owned, {}, [](const OwnedShard& shard) { return shard.owned.first; });
        file = {.name = "optimizer", .by = StateFile::By::all, .tensors = {{.name = "first_moments", .shards = {}},
                                                                     {.name = "second_moments", .shards = {},
                                                                      .non_negative = true}}};
        for (std::size_t moment : {0, 1})
            for (const OwnedShard& shard : owned)
                file.tensors[moment].shards.push_back({shard.flat.first, shard.owned.of(std::span(values[moment]))});
    }
    FileFingerprint write(const std::filesystem::path& folder, int rank, int ranks, std::int64_t elements) const {
        std::vector<float> all = values[0];
        all.insert(all.end(), values[1].begin(), values[1].end());
        return write_state(folder / state_file_name("optimizer", rank, ranks), file, elements, all);
    }
    std::vector<std::vector<float>> values;
    StateFile file;
};

std::string read_to_host(const StateFile& file, const StateSource& source) {
    return read_state(file, source, [](std::span<float> to, std::span<const float> values) {
        std::ranges::copy(values, to.begin());
    });
}

}  // namespace

TEST_CASE("moments of any number of ranks and stage can be read by any other", "[moments]") {
    const ParameterTable table(ModelConfig{3, 2, 32, 16, 61});
    const auto elements = std::size_t(table.elements());
    std::vector<float> first(elements), second(elements);
    std::iota(first.begin(), first.end(), 1.0f);
    std::iota(second.begin(), second.end(), 1e6f);
    const test::ScratchFolder scratch;
    const auto all = {std::pair(0, 1), {1, 1}, {1, 2}, {2, 3}, {1, 7}, {2, 64}};
    for (const auto& [stage, ranks] : all) {
        CAPTURE(stage, ranks);
        const auto folder = scratch / (std::to_string(stage) + "." + std::to_string(ranks));
        std::filesystem::create_directory(folder);
        for (int rank = 0; rank < ranks; ++rank) {
            const GradientBuckets buckets(table, {.stage = stage, .rank = rank, .ranks = ranks});
            Moments mine(buckets);
            for (const OwnedShard& shard : buckets.owned()) {
                std::ranges::copy(shard.flat.of(std::span(first)), shard.owned.of(std::span(mine.values[0])).begin());
                std::ranges::copy(shard.flat.of(std::span(second)), shard.owned.of(std::span(mine.values[1])).begin());
            }
            mine.write(folder, rank, ranks, table.elements());
        }
        StateSource source{.folder = folder, .files = ranks, .elements = table.elements()};
        for (const auto& [new_stage, new_ranks] : all)
            for (int rank = 0; rank < new_ranks; ++rank) {
                const GradientBuckets buckets(table, {.stage = new_stage, .rank = rank, .ranks = new_ranks});
                Moments mine(buckets);
                source.rank = rank;
                source.ranks = new_ranks;
                CHECK(read_to_host(mine.file, source).empty());
                for (const OwnedShard& shard : buckets.owned()) {
                    const auto same = [&](std::vector<float>& read, std::vector<float>& want) {
                        return std::ranges::equal(shard.owned.of(std::span(read)), shard.flat.of(std::span(want)));
                    };
                    CHECK(same(mine.values[0], first));
                    CHECK(same(mine.values[1], second));
                }
            }
        Moments whole(GradientBuckets(table, {}));
        source.elements += 64;
        CHECK_THAT(error_of([&] { read_to_host(whole.file, source); }), Contains("the number of parameters"));
        if (ranks == 1) continue;
        source.elements -= 64;
        std::filesystem::copy_file(folder / state_file_name("optimizer", 0, ranks),
                                   folder / state_file_name("optimizer", 1, ranks),
                                   std::filesystem::copy_options::overwrite_existing);
        CHECK_THAT(error_of([&] { read_to_host(whole.file, source); }), Contains("each element once"));
        source.files = 0;
        CHECK_THAT(error_of([&] { read_to_host(whole.file, source); }), Contains("without files of optimizer"));
    }
}

TEST_CASE("ranks of a worker may have had other shards", "[moments]") {
    const std::int64_t elements = 100;
    std::vector<float> values(2 * std::size_t(elements), 1.0f);  // of worker 0, and of worker 1
    std::iota(values.begin() + elements, values.end(), 1000.0f);
    // File of rank 2 w + i: part i of worker w's moments, cut at `cut`.
    const auto file_of = [&](int rank, std::int64_t cut, std::span<float> memory) {
        const std::int64_t first = rank % 2 == 0 ? 0 : cut, size = rank % 2 == 0 ? cut : elements - cut;
        return StateFile{.name = "optimizer", .by = StateFile::By::all, .workers = 2,
                         .tensors = {{.name = "first_moments", .shards = {{first, memory.first(std::size_t(size))}}}}};
    };
    const test::ScratchFolder scratch;
    std::vector<float> memory(std::size_t(elements), 0.0f);
    for (int rank = 0; rank < 4; ++rank) {
        const StateFile file = file_of(rank, 64, memory);
        const auto& [first, of] = file.tensors[0].shards[0];
        write_state(scratch / state_file_name("optimizer", rank, 4), file, elements,
                    std::span(values).subspan(std::size_t(rank / 2 * elements + first), of.size()));
    }
    for (int rank = 0; rank < 4; ++rank) {
        const StateFile file = file_of(rank, 32, memory);
        const auto& [first, of] = file.tensors[0].shards[0];
        CHECK(read_to_host(file, {.folder = scratch.path(), .files = 4, .elements = elements, .rank = rank, .ranks = 4})
                  .empty());
        CHECK(std::ranges::equal(of, std::span(values).subspan(std::size_t(rank / 2 * elements + first), of.size())));
    }
}

TEST_CASE("elements that no file has are named", "[moments]") {
    const test::ScratchFolder scratch;
    const ParameterTable table(ModelConfig{1, 1, 16, 16, 61});
    const GradientBuckets first_half(table, {.stage = 1, .rank = 0, .ranks = 2});
    Moments(first_half).write(scratch.path(), 0, 1, table.elements());
    Moments whole(GradientBuckets(table, {}));
    CHECK_THAT(error_of([&] {
        read_to_host(whole.file, {.folder = scratch.path(), .files = 1, .elements = table.elements()});
    }), Contains("first_moments in ") && Contains("each of " + std::to_string(table.elements()) + " elements once"));
}

TEST_CASE("invalid metadata of a state file is quoted on one line", "[moments]") {
    const test::ScratchFolder scratch;
    const auto fault = [&](const std::string& elements, const std::string& ranges) {
        SafetensorsWriter writer(scratch / state_file_name("optimizer", 0, 1),
                                 {{"first_moments", "F32", {0}}, {"second_moments", "F32", {0}}},
                                 {{"elements", elements}, {"stretches", ranges}});
        writer.finish();
        std::vector<float> values(6);
        const StateFile file{.name = "optimizer", .tensors = {{.name = "first_moments", .shards = {{0, values}}}}};
        return error_of([&] { read_to_host(file, {.folder = scratch.path(), .files = 1, .elements = 6}); });
    };
    CHECK_THAT(fault("6\n7", ""), Contains(R"(is "6\x0a7"; expected 6)"));
    CHECK_THAT(fault("6", "0\n-6"), Contains(R"(its stretches is "0\x0a-6")"));
}

TEST_CASE("invalid moments are refused at any position", "[moments]") {
    const test::ScratchFolder scratch;
    const ParameterTable table(ModelConfig{1, 1, 16, 16, 61});
    const auto elements = std::size_t(table.elements());
    const auto place = GENERATE_COPY(std::size_t(0), elements / 2, elements - 1);
    const auto bad = GENERATE(NAN, INFINITY, -INFINITY, -1e-30f);
    const bool in_second = GENERATE(false, true);
    CAPTURE(place, bad, in_second);
    Moments moments(GradientBuckets(table, {}));
    std::ranges::fill(moments.values[0], -1.0f);
    moments.values[in_second ? 1 : 0][place] = bad;
    moments.write(scratch.path(), 0, 1, table.elements());
    const std::string heard = error_of([&] {
        read_to_host(moments.file, {.folder = scratch.path(), .files = 1, .elements = table.elements()});
    });
    if (bad == -1e-30f && !in_second) CHECK(heard == "accepted");
    else CHECK_THAT(heard, Contains((scratch / state_file_name("optimizer", 0, 1)).string() + ": a value of " +
                                    (in_second ? "second" : "first") + "_moments"));
}
