// moment_files_test.cpp - moments written by any number of ranks can be read by any other number
#include "llmc/model/moment_files.h"

#include <algorithm>
#include <numeric>

#include "test/support/catch.h"
#include "test/support/scratch_folder.h"
#include "test/support/support.h"

using namespace llmc;
using test::Contains;
using test::error_of;

TEST_CASE("moments of any number of ranks and stage can be read in any ranges", "[moments]") {
    const ParameterTable table(ModelConfig{3, 2, 32, 16, 61});
    const auto elements = std::size_t(table.elements());
    std::vector<float> first(elements), second(elements);
    std::iota(first.begin(), first.end(), 1.0f);
    std::iota(second.begin(), second.end(), 1e6f);
    const test::ScratchFolder scratch;
    for (const auto& [stage, ranks] : {std::pair(0, 1), {1, 1}, {1, 2}, {2, 3}, {1, 7}, {2, 64}}) {
        CAPTURE(stage, ranks);
        const auto folder = scratch.path() / (std::to_string(stage) + "." + std::to_string(ranks));
        std::filesystem::create_directory(folder);
        for (int rank = 0; rank < ranks; ++rank) {
            const GradientBuckets buckets(table, {.stage = stage, .rank = rank, .ranks = ranks});
            std::vector<float> mine_first(std::size_t(buckets.owned_elements())), mine_second(mine_first.size());
            for (const OwnedShard& shard : buckets.owned()) {
                std::ranges::copy(shard.in_flat(std::span(first)), shard.in_owned(std::span(mine_first)).begin());
                std::ranges::copy(shard.in_flat(std::span(second)), shard.in_owned(std::span(mine_second)).begin());
            }
            write_moments(folder / moment_file_name(rank, ranks), buckets.owned(), table.elements(), mine_first,
                          mine_second);
        }
        const MomentFiles files(folder, ranks, table.elements());
        for (const auto& [from, size] : {std::pair(std::size_t(0), elements), {std::size_t(1), elements - 1},
                                        {elements / 3, elements / 2}, {elements - 1, std::size_t(1)}}) {
            std::vector<float> some_first(size), some_second(size);
            files.read(std::int64_t(from), some_first, some_second);
            CHECK(std::equal(some_first.begin(), some_first.end(), first.begin() + std::ptrdiff_t(from)));
            CHECK(std::equal(some_second.begin(), some_second.end(), second.begin() + std::ptrdiff_t(from)));
        }
        CHECK_THAT(error_of([&, ranks = ranks] { MomentFiles(folder, ranks, table.elements() + 64); }),
                   Contains("the number of parameters"));
        if (ranks == 1) continue;
        std::filesystem::copy_file(folder / moment_file_name(0, ranks), folder / moment_file_name(1, ranks),
                                   std::filesystem::copy_options::overwrite_existing);
        CHECK_THAT(error_of([&, ranks = ranks] { MomentFiles(folder, ranks, table.elements()); }),
                   Contains("each element once"));
    }
}

TEST_CASE("invalid metadata of a moment file is quoted on one line", "[moments]") {
    const test::ScratchFolder scratch;
    const auto fault = [&](const std::string& elements, const std::string& stretches) {
        SafetensorsWriter writer(scratch.path() / moment_file_name(0, 1),
                                 {{"first_moments", "F32", {0}}, {"second_moments", "F32", {0}}},
                                 {{"elements", elements}, {"stretches", stretches}});
        writer.finish();
        return error_of([&] { MomentFiles(scratch.path(), 1, 6); });
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
    std::vector<float> first(elements, -1.0f), second(elements, 0.0f);
    (in_second ? second : first)[place] = bad;
    const auto file = scratch.path() / moment_file_name(0, 1);
    write_moments(file, GradientBuckets(table, {.stage = 0, .rank = 0, .ranks = 1}).owned(), table.elements(), first,
                  second);
    const MomentFiles files(scratch.path(), 1, table.elements());
    std::vector<float> read_first(elements), read_second(elements);
    const std::string heard = error_of([&] { files.read(0, read_first, read_second); });
    if (bad == -1e-30f && !in_second) CHECK(heard == "accepted");
    else CHECK_THAT(heard, Contains(file.string() + ": a value of " + (in_second ? "second" : "first") + "_moments"));
}
