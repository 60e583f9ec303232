// hellaswag_test.cpp - checks of every word of a HellaSwag file, and its endings as shifted targets in rows
#include "kernels/device/types.h"
#include "llmc/data/hellaswag_batches.h"
#include "test/support/hellaswag_support.h"

using namespace llmc;
using namespace test;
using kernels::kIgnoreTarget;
using Row = std::vector<std::int32_t>;

namespace {

const HellaSwagBytes kTwo({{.context = {5, 6, 7}, .endings = {{{1, 2}, {3}, {4, 4, 4}, {9}}}, .right = 2},
                           {.context = {8}, .endings = {{{1}, {2}, {3}, {4}}}, .right = 3}}, 10, 0);

// Inputs and targets of a row.
std::pair<Row, Row> row_of(const HellaSwagBatches& batches, std::int64_t row) {
    for (std::int64_t j = 0; j < batches.size(); ++j) {
        const auto batch = batches[j];
        for (std::size_t i = 0; i < batch.rows.size(); ++i) {
            const auto cut = [&](const Row& all) {
                const auto first = all.begin() + std::ptrdiff_t(i) * batch.seq_len;
                return Row(first, first + batch.seq_len);
            };
            if (batch.rows[i] == row) return {cut(batch.inputs), cut(batch.targets)};
        }
    }
    return {};
}

}  // namespace

TEST_CASE("a HellaSwag file is read as written; llm.c's file has GPT-2's vocabulary", "[hellaswag]") {
    const ScratchFolder folder;
    const HellaSwagFile file(kTwo.write(folder / "two.bin"));
    CHECK(file.vocabulary() == Vocabulary{10, 0});
    REQUIRE(file.examples().size() == 2);
    const auto ids = [](std::span<const std::uint16_t> span) { return HellaSwagBytes::Ids(span.begin(), span.end()); };
    CHECK(ids(file.examples()[0].context) == HellaSwagBytes::Ids{5, 6, 7});
    CHECK(ids(file.examples()[0].endings[2]) == HellaSwagBytes::Ids{4, 4, 4});
    CHECK(file.examples()[0].right == 2);
    CHECK(ids(file.examples()[1].endings[3]) == HellaSwagBytes::Ids{4});
    CHECK(file.examples()[1].right == 3);
    HellaSwagBytes theirs = kTwo;
    theirs.header[4] = 0;
    CHECK(HellaSwagFile(theirs.write(folder / "theirs.bin")).vocabulary() == Vocabulary{50257, 50256});
}

TEST_CASE("an invalid HellaSwag file is refused with its name, the example and the number", "[hellaswag]") {
    const ScratchFolder folder;
    const std::string path = folder / "bad.bin";
    const auto refused = [&](const std::string& bytes, const std::string& what, const std::string& found) {
        CHECK_THAT(fault_of_file(path, bytes, [&] { HellaSwagFile file(path); }),
                   Contains(what) && Contains(found));
    };
    struct Row {
        std::size_t word;
        std::int32_t value;
        std::string what, found;
    };
    for (const auto& [word, value, what, found] : std::vector<Row>{
             {0, 20240520, "magic number", "20240520; expected 20240522; it is a token shard"}, {1, 2, "version", "2"},
             {2, 0, "number of examples", "0"}, {2, 3, "example 2: its words", "0"},
             {2, 1, "bytes after the last example", "30"}, {3, 7, "bytes of the longest example", "7"},
             {4, 9, "example 0: a token id", "9"}, {5, 10, "end-of-text id", "10"}}) {
        HellaSwagBytes bad = kTwo;
        bad.header[word] = value;
        refused(bad.bytes(), what, found);
    }
    const std::string whole = kTwo.bytes();
    for (std::size_t size = 0; size < whole.size(); ++size) refused(whole.substr(0, size), "", "");
    for (const auto& [word, value, what, found] : std::vector<Row>{
             {0, 1, "its first word", "1"}, {1, 30, "the length of an ending", "3"},  // that ends elsewhere
             {1, 65535, "its length in bytes", "65535"}, {2, 1, "its index", "1"}, {3, 4, "the right ending", "4"},
             {4, 3, "the number of endings", "3"}, {5, 0, "the length of its context", "0"},
             {5, 60000, "the length of its context", "60000"}, {9, 0, "the length of an ending", "0"},
             {9, 3, "the length of an ending", "4"}}) {
        HellaSwagBytes bad = kTwo;
        bad.words[0][word] = std::uint16_t(value);
        refused(bad.bytes(), "example 0: " + what, found);
    }
    CHECK_THROWS_WITH(HellaSwagFile(folder / "none.bin"), Contains("none.bin"));
}

TEST_CASE("a context that is too long is truncated at its start; an ending must fit", "[hellaswag]") {
    const ScratchFolder folder;
    const std::string path = kTwo.write(folder / "two.bin");
    const HellaSwagFile file(path);
    const HellaSwagBatches batches(file, 2, 3);
    CHECK(batches.truncated_contexts() == 1);
    CHECK(row_of(batches, 0) == std::pair(Row{6, 7, 1}, Row{kIgnoreTarget, 1, 2}));
    CHECK(row_of(batches, 1) == std::pair(Row{5, 6, 7}, Row{kIgnoreTarget, kIgnoreTarget, 3}));
    CHECK(row_of(batches, 2) == std::pair(Row{7, 4, 4}, Row{4, 4, 4}));
    CHECK(row_of(batches, 4) == std::pair(Row{8, 0, 0}, Row{1, kIgnoreTarget, kIgnoreTarget}));
    CHECK_THROWS_WITH(HellaSwagBatches(file, 2, 2),
                      Contains("tokens of ending 2 of example 0 is 3; expected at most --seq-len = 2"));
}
