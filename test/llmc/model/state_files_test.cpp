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

using Floats = std::vector<float>;

FileFingerprint write(const test::ScratchFolder& folder, const StateFile& file, int rank, int ranks) {
    Floats all;
    for (const std::span<float> shard : file.values()) all.insert(all.end(), shard.begin(), shard.end());
    return write_state(folder / state_file_name(file.name, rank, ranks), file, all);
}
std::string read_to_host(const StateFile& file, const StateSource& source) {
    return read_state(file, source, [](std::span<float> to, std::span<const float> values) {
        std::ranges::copy(values, to.begin());
    });
}

// Both moments of the elements that a rank owns, like AdamW::state(), in host memory.
struct Moments {
    explicit Moments(const ParameterTable& table, const Sharding& sharding = {})
        : buckets(table, sharding), owned(2, Floats(std::size_t(buckets.owned_elements()))) {
        std::vector<StateShard> shards[2];
        for (const OwnedShard& shard : buckets.owned())
            for (const std::size_t moment : {0, 1})
                shards[moment].push_back({shard.flat.first, shard.owned.of(std::span(owned[moment]))});
        file = {.name = "optimizer", .by = StateFile::By::all,
                .quantities = {{.name = "first_moment", .tensors = by_parameter(table.tensors(), shards[0])},
                               {.name = "second_moment", .tensors = by_parameter(table.tensors(), shards[1]),
                                .non_negative = true}}};
    }
    // As a file of 0.3.0: a vector of each moment, with the ranges that the rank owned in the flat array.
    void write_flat(const test::ScratchFolder& folder, std::int64_t elements) const {
        std::vector<OwnedShard> all = buckets.owned();
        std::ranges::sort(all, {}, [](const OwnedShard& shard) { return shard.owned.first; });
        std::vector<ElementRange> ranges;
        for (const OwnedShard& shard : all) ranges.push_back(shard.flat);
        const auto [stage, rank, ranks, whole] = buckets.sharding();
        SafetensorsWriter writer(folder / state_file_name("optimizer", rank, ranks),
                                 {{"first_moments", "F32", {std::ssize(owned[0])}},
                                  {"second_moments", "F32", {std::ssize(owned[1])}}},
                                 {{"elements", std::to_string(elements)}, {"stretches", text_of_ranges(ranges)}});
        for (const Floats& values : owned) writer.append(values);
        writer.finish();
    }
    GradientBuckets buckets;
    std::vector<Floats> owned;
    StateFile file;
};

// A file of one quantity of a parameter "w", of which the rank has elements from `first` on.
StateFile file_of(const char* quantity, std::vector<std::int64_t> shape, std::int64_t first, std::span<float> values) {
    return {.name = "optimizer", .by = StateFile::By::all,
            .quantities = {{.name = quantity, .tensors = {{.parameter = "w", .shape = std::move(shape),
                                                           .shards = {{first, values}}}}}}};
}

}  // namespace

TEST_CASE("moments of any number of ranks and stage can be read by any other", "[moments]") {
    const ParameterTable table(ModelConfig{3, 2, 32, 16, 61}), other(ModelConfig{3, 2, 32, 16, 62});
    Floats values[2] = {Floats(std::size_t(table.elements())), Floats(std::size_t(table.elements()))};
    for (const ParameterSpec& spec : table.tensors())  // gaps and padding are 0
        for (const std::size_t moment : {0, 1}) {
            const auto of = spec.range_in_files().of(std::span(values[moment]));
            std::iota(of.begin(), of.end(), float(spec.offset) + (moment == 0 ? 1.0f : 1e6f));
        }
    const bool flat = GENERATE(false, true);
    const auto all = {std::pair(0, 1), {1, 1}, {1, 2}, {2, 3}, {1, 7}, {2, 64}};
    for (const auto& [stage, ranks] : all) {
        CAPTURE(stage, ranks, flat);
        const test::ScratchFolder folder;
        for (int rank = 0; rank < ranks; ++rank) {
            Moments mine(table, {.stage = stage, .rank = rank, .ranks = ranks});
            for (const OwnedShard& shard : mine.buckets.owned())
                for (const std::size_t moment : {0, 1})
                    std::ranges::copy(shard.flat.of(std::span(values[moment])),
                                      shard.owned.of(std::span(mine.owned[moment])).begin());
            if (flat) mine.write_flat(folder, table.elements());
            else write(folder, mine.file, rank, ranks);
        }
        StateSource source{.folder = folder.path(), .files = ranks, .parameters = table.tensors(),
                           .elements = table.elements()};
        for (const auto& [new_stage, new_ranks] : all)
            for (int rank = 0; rank < new_ranks; ++rank) {
                Moments mine(table, {.stage = new_stage, .rank = rank, .ranks = new_ranks});
                source.rank = rank;
                source.ranks = new_ranks;
                CHECK(read_to_host(mine.file, source).empty());
                for (const OwnedShard& shard : mine.buckets.owned())
                    for (const std::size_t moment : {0, 1})
                        CHECK(std::ranges::equal(shard.owned.of(std::span(mine.owned[moment])),
                                                 shard.flat.of(std::span(values[moment]))));
            }
        Moments whole(table), larger(other);
        StateSource of_larger = source;
        of_larger.parameters = other.tensors();
        of_larger.elements += 64;
        const char* const what = flat ? "optimizer-00000-of-" : "wte.weight.first_moment";
        CHECK_THAT(error_of([&] { read_to_host(larger.file, of_larger); }),
                   Contains(what) && Contains("resume with the model of the checkpoint"));
        if (ranks == 1) continue;
        std::filesystem::copy_file(folder / state_file_name("optimizer", 0, ranks),
                                   folder / state_file_name("optimizer", 1, ranks),
                                   std::filesystem::copy_options::overwrite_existing);
        CHECK_THAT(error_of([&] { read_to_host(whole.file, source); }),
                   Contains("weight.first_moment in ") && Contains("each element once"));
        source.files = 0;
        CHECK_THAT(error_of([&] { read_to_host(whole.file, source); }), Contains("without files of optimizer"));
    }
}

TEST_CASE("a file has a tensor for each parameter, whole or as the ranges in its metadata", "[moments]") {
    const test::ScratchFolder folder;
    const ParameterTable table(ModelConfig{1, 1, 16, 16, 61});
    for (const int ranks : {1, 3}) write(folder, Moments(table, {.stage = ranks / 2, .ranks = ranks}).file, 0, ranks);
    const SafetensorsFile whole(folder / state_file_name("optimizer", 0, 1)),
        part(folder / state_file_name("optimizer", 0, 3));
    CHECK(whole.tensors().size() == 2 * table.tensors().size());
    CHECK(whole.tensors()[0].name == "wte.weight.first_moment");
    CHECK(whole.tensors()[0].shape == std::vector<std::int64_t>{61, 16});
    CHECK(whole.tensors().back().name == "ln_f.bias.second_moment");
    CHECK(whole.metadata().empty());
    CHECK(part.tensors()[0].shape == std::vector<std::int64_t>{768});
    CHECK(part.metadata().at("wte.weight.first_moment") == "0+768 of [61, 16]");
    Floats flat(100);  // shards in any order
    const auto tensors = by_parameter(table.tensors(), {{40, flat}, {0, std::span(flat).first(40)}});
    CHECK((tensors[0].shards.size() == 2 && tensors[0].shards[0].first == 0));
}

// Second moments of the rows and columns of a matrix, as Adafactor's, and a preconditioner of its columns, as SOAP's.
TEST_CASE("quantities may have other shapes than their parameter", "[moments]") {
    struct Factor {
        const char* name;
        std::vector<std::int64_t> shape;
        std::size_t cut;  // of two ranks, the first element of the second one
    };
    const Factor kFactors[] = {{"row_moment", {12}, 7}, {"column_moment", {5}, 1}, {"preconditioner", {5, 5}, 13}};
    std::vector<Floats> saved{Floats(12), Floats(5), Floats(25)}, loaded = saved;
    for (Floats& values : saved) std::iota(values.begin(), values.end(), float(values.size()));
    const auto file = [&](std::vector<Floats>& factors, int rank, int ranks) {
        StateFile all{.name = "factors", .by = StateFile::By::all};
        for (std::size_t i = 0; i < factors.size(); ++i) {
            const auto& [name, shape, cut] = kFactors[i];
            const std::size_t first = rank == 0 ? 0 : cut, end = rank + 1 == ranks ? factors[i].size() : cut;
            all.quantities.push_back({.name = name, .tensors = {{
                .parameter = "h.0.mlp.c_fc.weight", .shape = shape,
                .shards = {{std::int64_t(first), std::span(factors[i]).subspan(first, end - first)}}}}});
        }
        return all;
    };
    const auto [from, to] = GENERATE(std::pair(2, 1), std::pair(1, 2), std::pair(1, 1));
    const test::ScratchFolder folder;
    for (int rank = 0; rank < from; ++rank) write(folder, file(saved, rank, from), rank, from);
    for (int rank = 0; rank < to; ++rank)
        read_to_host(file(loaded, rank, to), {.folder = folder.path(), .files = from, .rank = rank, .ranks = to});
    CHECK(loaded == saved);
}

TEST_CASE("ranks of a worker may have had other shards", "[moments]") {
    const std::int64_t elements = 100;
    Floats values(2 * std::size_t(elements), 1.0f);  // of worker 0, and of worker 1
    std::iota(values.begin() + elements, values.end(), 1000.0f);
    // File of rank 2 w + i: part i of worker w's moments, cut at `cut`.
    const auto file_of_worker = [&](int rank, std::int64_t cut, std::span<float> of_worker) {
        const ElementRange held{rank % 2 == 0 ? 0 : cut, rank % 2 == 0 ? cut : elements - cut};
        StateFile file = file_of("first_moment", {elements}, held.first, held.of(of_worker));
        file.workers = 2;
        return file;
    };
    const test::ScratchFolder folder;
    Floats loaded(values.size());
    const auto of_worker = [&](Floats& all, int rank) {
        return std::span(all).subspan(std::size_t(rank / 2 * elements), std::size_t(elements));
    };
    for (int rank = 0; rank < 4; ++rank) write(folder, file_of_worker(rank, 64, of_worker(values, rank)), rank, 4);
    for (int rank = 0; rank < 4; ++rank)
        CHECK(read_to_host(file_of_worker(rank, 32, of_worker(loaded, rank)),
                           {.folder = folder.path(), .files = 4, .rank = rank, .ranks = 4}).empty());
    CHECK(loaded == values);
}

TEST_CASE("what a file lacks is named", "[moments]") {
    const test::ScratchFolder folder;
    Floats values(6);
    write(folder, file_of("first_moment", {6}, 0, std::span(values).first(3)), 0, 1);
    const auto missing = [&](const char* quantity) {
        return error_of([&] {
            read_to_host(file_of(quantity, {6}, 0, values), {.folder = folder.path(), .files = 1});
        });
    };
    CHECK_THAT(missing("first_moment"), Contains("w.first_moment in " + folder.path().string()) &&
                                            Contains("each of 6 elements once"));
    CHECK_THAT(missing("momentum"), Contains("is without the tensor w.momentum; expected a file of momentum"));
}

TEST_CASE("invalid metadata of a state file is quoted on one line", "[moments]") {
    const test::ScratchFolder folder;
    const auto fault = [&](const char* name, const std::vector<std::int64_t>& shape, const Metadata& metadata) {
        SafetensorsWriter writer(folder / state_file_name("optimizer", 0, 1), {{name, "F32", shape}}, metadata);
        Floats values(6);
        writer.append(std::span(values).first(std::size_t(shape[0])));
        writer.finish();
        const ParameterSpec w{.name = "w", .rows = 2, .columns = 3, .rows_in_files = 2};
        return error_of([&] {
            read_to_host(file_of("momentum", {2, 3}, 0, values),
                         {.folder = folder.path(), .files = 1, .parameters = {&w, 1}, .elements = 6});
        });
    };
    const auto part = [&](std::int64_t size, const char* ranges) {
        return fault("w.momentum", {size}, {{"w.momentum", ranges}});
    };
    CHECK_THAT(part(0, "0\n-6 of [2, 3]"), Contains(R"(its w.momentum is "0\x0a-6"; expected FIRST+SIZE ... within)"));
    CHECK_THAT(part(0, "5+2 of [2, 3]"), Contains(R"(w.momentum is "5+2"; expected FIRST+SIZE ... within the 6)"));
    CHECK_THAT(part(4, "0+2 1+2 of [2, 3]"), Contains(R"("0+2 1+2"; expected each element once)"));
    CHECK_THAT(part(6, "0+6 of [3,\n2]"), Contains(R"("0+6 of [3,\x0a2]"; expected FIRST+SIZE ... of [2, 3])"));
    CHECK_THAT(part(0, "0+6 of [2, 3]"), Contains("w.momentum is F32 [0]; expected F32 [6]"));
    CHECK_THAT(fault("w.momentum", {6}, {}), Contains("w.momentum is F32 [6]; expected F32 [2, 3]"));
    CHECK_THAT(fault("momentum", {6}, {}), Contains("without \"elements\" in its metadata"));
    CHECK_THAT(fault("momentum", {0}, {{"elements", "6\n7"}}), Contains(R"(is "6\x0a7"; expected 6)"));
    CHECK_THAT(fault("momentum", {0}, {{"elements", "6"}, {"stretches", "0\n-6"}}), Contains(R"(stretches is "0\x0a)"));
    CHECK_THAT(fault("momentum", {5}, {{"elements", "6"}}), Contains("momentum is F32 [5]; expected F32 [6]"));
}

TEST_CASE("invalid moments are refused at any position", "[moments]") {
    const test::ScratchFolder folder;
    const auto place = GENERATE(std::size_t(0), std::size_t(4), std::size_t(8));
    const auto bad = GENERATE(NAN, INFINITY, -INFINITY, -1e-30f);
    const bool non_negative = GENERATE(false, true);
    CAPTURE(place, bad, non_negative);
    Floats values(9, non_negative ? 1.0f : -1.0f);
    values[place] = bad;
    StateFile file = file_of("moment", {3, 3}, 0, values);
    file.quantities[0].non_negative = non_negative;
    write(folder, file, 0, 1);
    const std::string heard = error_of([&] { read_to_host(file, {.folder = folder.path(), .files = 1}); });
    if (bad == -1e-30f && !non_negative) CHECK(heard == "accepted");
    else CHECK_THAT(heard, Contains((folder / state_file_name("optimizer", 0, 1)).string() + ": a value of w.moment"));
}

TEST_CASE("times_covered() is empty unless ranges cover all elements equally often", "[checkpoint]") {
    CHECK(times_covered({{.first = 0, .size = 6}, {.first = 4, .size = 2}, {.first = 0, .size = 4}}, 6) == 2);
    CHECK_FALSE(times_covered({{.first = 1, .size = 5}}, 6));
    // the total is 12, but not every element is covered twice
    CHECK_FALSE(times_covered({{.first = 0, .size = 6}, {.first = 0, .size = 3}, {.first = 0, .size = 3}}, 6));
}
