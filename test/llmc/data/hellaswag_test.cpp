// hellaswag_test.cpp - checks of every word of a HellaSwag file, and its endings as shifted targets in rows
#include "kernels/base/error.h"
#include "kernels/device/types.h"
#include "llmc/data/hellaswag_batches.h"
#include "test/support/hellaswag_support.h"

using namespace llmc;
using test::Contains;
using kernels::kIgnoreTarget;
using test::HellaSwagBytes;
using test::ScratchFolder;
using Row = std::vector<std::int32_t>;

namespace {

const HellaSwagBytes kTwo({{.context = {5, 6, 7}, .endings = {{{1, 2}, {3}, {4, 4, 4}, {9}}}, .right = 2},
                           {.context = {8}, .endings = {{{1}, {2}, {3}, {4}}}, .right = 3}}, 10, 0);

// The contents of a row in its batch.
struct FoundRow {
    Row inputs, targets;
    int seq_len = 0;
};
FoundRow find_row(const HellaSwagBatches& batches, std::int64_t row) {
    FoundRow found;
    int times = 0;
    for (std::int64_t j = 0; j < batches.size(); ++j) {
        const auto batch = batches[j];
        REQUIRE(batch.inputs.size() == batch.rows.size() * std::size_t(batch.seq_len));
        REQUIRE(batch.targets.size() == batch.inputs.size());
        for (std::size_t i = 0; i < batch.rows.size(); ++i) {
            if (batch.rows[i] != row) continue;
            ++times;
            const auto cut = [&](const Row& all) {
                const auto first = all.begin() + std::ptrdiff_t(i) * batch.seq_len;
                return Row(first, first + batch.seq_len);
            };
            found = {cut(batch.inputs), cut(batch.targets), batch.seq_len};
        }
    }
    REQUIRE(times == 1);
    return found;
}

// The expected row of these tokens, padded to `seq_len`.
FoundRow row_of(const std::vector<std::uint16_t>& context, const std::vector<std::uint16_t>& ending, int seq_len) {
    FoundRow row{Row(std::size_t(seq_len), 0), Row(std::size_t(seq_len), kIgnoreTarget), seq_len};
    std::vector<std::uint16_t> all = context;
    all.insert(all.end(), ending.begin(), ending.end());
    for (std::size_t i = 0; i + 1 < all.size(); ++i) {
        row.inputs[i] = all[i];
        if (i + 1 >= context.size()) row.targets[i] = all[i + 1];
    }
    return row;
}

bool same(const FoundRow& a, const FoundRow& b) {
    return a.inputs == b.inputs && a.targets == b.targets && a.seq_len == b.seq_len;
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
        CHECK_THAT(test::fault_of_file(path, bytes, [&] { HellaSwagFile file(path); }),
                   Contains(what) && Contains(found));
    };
    const auto with_header = [&](std::size_t word, std::int32_t value) {
        HellaSwagBytes bad = kTwo;
        bad.header[word] = value;
        return bad.bytes();
    };
    refused(with_header(0, 20240520), "magic number", "20240520; expected 20240522; it is a token shard");
    refused(with_header(1, 2), "version", "2");
    refused(with_header(2, 0), "number of examples", "0");
    refused(with_header(2, 3), "example 2: its words", "0");
    refused(with_header(2, 1), "bytes after the last example", "30");
    refused(with_header(3, 7), "bytes of the longest example", "7");
    refused(with_header(4, 9), "example 0: a token id", "9");
    refused(with_header(5, 10), "end-of-text id", "10");
    const std::string whole = kTwo.bytes();
    for (std::size_t size = 0; size < whole.size(); ++size) refused(whole.substr(0, size), "", "");
    const auto with_word = [&](std::size_t word, std::uint16_t value) {
        HellaSwagBytes bad = kTwo;
        bad.words[0][word] = value;
        return bad.bytes();
    };
    refused(with_word(0, 1), "example 0: its first word", "1");
    refused(with_word(1, 30), "example 0: the length of an ending", "3");  // a length in bytes that ends elsewhere
    refused(with_word(1, 65535), "example 0: its length in bytes", "65535");
    refused(with_word(2, 1), "example 0: its index", "1");
    refused(with_word(3, 4), "example 0: the right ending", "4");
    refused(with_word(4, 3), "example 0: the number of endings", "3");
    refused(with_word(5, 0), "example 0: the length of its context", "0");
    refused(with_word(5, 60000), "example 0: the length of its context", "60000");
    refused(with_word(9, 0), "example 0: the length of an ending", "0");
    refused(with_word(9, 3), "example 0: the length of an ending", "4");
    CHECK_THROWS_WITH(HellaSwagFile(folder / "none.bin"), Contains("none.bin"));
}

TEST_CASE("an ending's tokens are targets at the position of the token before them", "[hellaswag]") {
    const ScratchFolder folder;
    const auto examples = test::random_hellaswag(40, 300, 150);
    const std::string path = HellaSwagBytes(examples, 300, 0).write(folder / "many.bin");
    const int micro_batch = GENERATE(1, 3, 64);
    const HellaSwagFile file(path);
    const HellaSwagBatches batches(file, micro_batch, 256);
    CHECK(batches.rows() == 160);
    CHECK(batches.truncated_contexts() == 0);
    int before = 0;
    for (std::int64_t j = 0; j < batches.size(); ++j) {
        const auto batch = batches[j];
        CHECK(batch.rows.size() * std::size_t(batch.seq_len) <= std::size_t(micro_batch) * 256);
        CHECK(batch.seq_len >= before);
        CHECK(batch.seq_len % 64 == 0);
        before = batch.seq_len;
    }
    for (std::size_t i = 0; i < examples.size(); ++i)
        for (std::size_t e = 0; e < 4; ++e) {
            const auto row = find_row(batches, std::int64_t(4 * i + e));
            const std::size_t inputs = examples[i].context.size() + examples[i].endings[e].size() - 1;
            CHECK(same(row, row_of(examples[i].context, examples[i].endings[e], int((inputs + 63) / 64 * 64))));
        }
}

TEST_CASE("a context that is too long is truncated at its start; an ending must fit", "[hellaswag]") {
    const ScratchFolder folder;
    const std::string path = kTwo.write(folder / "two.bin");
    const HellaSwagFile file(path);
    const HellaSwagBatches batches(file, 2, 3);
    CHECK(batches.truncated_contexts() == 1);
    CHECK(same(find_row(batches, 0), row_of({6, 7}, {1, 2}, 3)));
    CHECK(same(find_row(batches, 1), row_of({5, 6, 7}, {3}, 3)));
    CHECK(same(find_row(batches, 2), row_of({7}, {4, 4, 4}, 3)));
    CHECK(same(find_row(batches, 4), row_of({8}, {1}, 3)));
    CHECK_THROWS_WITH(HellaSwagBatches(file, 2, 2),
                      Contains("tokens of ending 2 of example 0 is 3; expected at most --seq-len = 2"));
}
