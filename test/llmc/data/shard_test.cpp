// shard_test.cpp - shards are read as written; damaged ones are refused by name; incomplete ones never appear
#include <sys/file.h>
#include <sys/stat.h>

#include <clocale>
#include <map>
#include <thread>

#include "llmc/data/shard.h"
#include "llmc/text/shard_writer.h"
#include "llmc/text/tokenizer.h"
#include "test/support/shard_support.h"

using namespace llmc;
using namespace test;

TEST_CASE("a shard of llm.c has GPT-2's vocabulary, ours that of its header", "[shard]") {
    const ScratchFolder folder;
    const Shard theirs(ShardBytes({1, 50256, 3}).write(folder / "theirs.bin"));
    CHECK(theirs.tokens() == 3);
    CHECK(theirs.vocabulary() == Vocabulary{50257, 50256});
    CHECK(tokens_of(theirs.path()) == std::vector<int>{1, 50256, 3});

    const Shard ours(ShardBytes({0, 256}, 257, 256).write(folder / "ours.bin"));
    CHECK(ours.vocabulary() == Vocabulary{257, 256});
    const Shard zero(ShardBytes({0, 9}, 10, 0).write(folder / "zero.bin"));
    CHECK(zero.vocabulary() == Vocabulary{10, 0});
    const Shard largest(ShardBytes({65535}, 65536, 65535).write(folder / "largest.bin"));
    CHECK(tokens_of(largest.path()) == std::vector<int>{65535});
}

TEST_CASE("an invalid shard is refused with its name, the value found and the value expected", "[shard]") {
    const ScratchFolder folder;
    const std::string path = folder / "bad.bin";
    const ShardBytes good({1, 2, 3});
    const auto fault = [&](const std::string& bytes) {
        return fault_of_file(path, bytes, [&] { const Shard shard(path); });
    };
    CHECK_THAT(fault(""), Contains("empty") && Contains("header"));
    CHECK_THAT(fault(good.bytes().substr(0, 1023)), Contains("1023") && Contains("1024"));
    CHECK_THAT(fault(good.bytes().substr(0, 1029)), Contains("1029") && Contains("1030 for the 3 tokens"));
    CHECK_THAT(fault(good.bytes() + "x"), Contains("1031") && Contains("1030 for the 3 tokens"));
    CHECK_THAT(fault(ShardBytes({}).bytes()), Contains("token count in the header is 0") && Contains("at least 1"));
    struct Row {
        std::map<std::size_t, std::int32_t> words;  // of the header
        const char *found, *expected;
    };
    for (const auto& [words, found, expected] : std::vector<Row>{
             {{{0, 20240327}}, "magic number is 20240327", "20240520"},
             {{{0, 20240326}}, "magic number is 20240326", "this is a model of llm.c: start from it with --init"},
             {{{1, 2}}, "version is 2", "expected 1"},
             {{{2, -3}}, "-3", "at least 1"},
             {{{2, 0x7fffffff}}, "1030", "4294968318"},  // more than 32 bits of bytes
             {{{3, -1}}, "vocabulary size (header word 3) is -1", "1 to 65536"},
             {{{3, 65537}}, "65537", "1 to 65536"},
             {{{4, 256}}, "(header word 3) is 0", "1 to 65536"},
             {{{3, 257}, {4, 257}}, "end-of-text id (header word 4) is 257", "0 to 256"},
             {{{3, 257}, {4, -1}}, "is -1", "0 to 256"}}) {
        ShardBytes bad = good;
        for (const auto& [word, value] : words) bad.header[word] = value;
        CHECK_THAT(fault(bad.bytes()), Contains(found) && Contains(expected));
    }
    const std::string file = good.write(path), here = folder.path().string();
    for (const auto& [name, says] : std::vector<std::pair<std::string, std::vector<std::string>>>{
             {here + "/none.bin", {here + "/none.bin", "missing"}},
             {here, {here + " is a folder", here + "/*"}},
             {"/dev/null", {"/dev/null", "regular file"}},
             {file + "/x", {file + "/x is unreadable (Not a directory)"}}})
        for (const std::string& part : says) CHECK_THROWS_WITH(Shard(name), Contains(part));
    std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
    std::filesystem::permissions(path, std::filesystem::perms::none);
    const WithoutRoot user;
    CHECK_THROWS_WITH(Shard(path), Contains(path) && Contains("unreadable (Permission denied)"));
}

TEST_CASE("an id outside the vocabulary is refused at any offset when it is read", "[shard]") {
    const ScratchFolder folder;
    const int offset = GENERATE(0, 1, 31, 32, 4999, 5000);  // within and after full vectors
    CAPTURE(offset);
    ShardBytes bytes(std::vector<std::uint16_t>(5001, 256), 257, 256);
    bytes.ids[std::size_t(offset)] = 257;
    const Shard shard(bytes.write(folder / "ids.bin"));
    CHECK(shard.read(0, offset).size() == std::size_t(offset));
    CHECK(shard.read(offset + 1, 5000 - offset).size() == std::size_t(5000 - offset));
    const std::string message = (folder / "ids.bin").string() + ": id of token " + std::to_string(offset) +
                                " is 257; expected less than its vocabulary of 257";
    CHECK_THAT(error_of([&] { shard.read(0, 5001); }, Blame::runtime), Contains(message));
    CHECK_THROWS_WITH(shard.read(offset, 1), Contains(message));  // again, and with another start of the read
}

TEST_CASE("shards are sorted by the bytes of their names in any locale, each once", "[shard]") {
    const ScratchFolder folder;
    for (const char* name : {"a_1.bin", "B_0.bin", "a_10.bin", "a_2.bin", "Z.bin", "\xc3\xa4.bin"})
        ShardBytes(counting(1 + int(std::string(name).size()))).write(folder / name);
    write_bytes(folder / "a_1.bin.partial-7", "half");
    std::setlocale(LC_ALL, "en_US.UTF-8");  // sorts "a" before "B", if installed
    const ShardSet shards(folder / "*.bin");
    std::setlocale(LC_ALL, "C");
    std::vector<std::string> names;
    for (const Shard& shard : shards.shards()) names.push_back(std::filesystem::path(shard.path()).filename());
    CHECK(names == std::vector<std::string>{"B_0.bin", "Z.bin", "a_1.bin", "a_10.bin", "a_2.bin", "\xc3\xa4.bin"});
    CHECK(shards.tokens() == 8 + 6 + 8 + 9 + 8 + 7);

    const ShardSet in_order({folder / "a_*.bin", folder / "Z.bin", folder / "B*.bin"});  // of the patterns
    CHECK((in_order.size() == 5 && in_order[3].path() == folder / "Z.bin"));
    CHECK_THROWS_WITH(ShardSet({folder / "a_*.bin", folder / "a_1.bin"}), Contains("matched by two patterns"));
    const std::string other_name = (std::filesystem::path(folder / "x").parent_path() / "." / "a_1.bin").string();
    CHECK_THROWS_WITH(ShardSet({folder / "a_1.bin", other_name}), Contains("under two names"));

    const auto with = [&](const char* a, const char* b) {
        return ShardSet({(folder / "a_*.bin").string() + a, (folder / "Z.bin").string() + b});
    };
    const ShardSet weighted = with(":0.75", ":.5");
    REQUIRE((weighted.is_weighted() && !in_order.is_weighted() && weighted.size() == 4));
    const auto& corpora = weighted.corpora();
    CHECK((corpora[0].weight == 3 && corpora[0].shards == 3 && corpora[0].pattern == folder / "a_*.bin"));
    CHECK((corpora[1].weight == 2 && corpora[1].shards == 1));
    CHECK(ShardSet::unmatched({(folder / "Z.bin").string() + ":1", "none:2"}) == "none:2");
    CHECK_THROWS_WITH(with(":1", ""), Contains("Z.bin\" is without a weight; expected a weight for every pattern"));
    for (const char* const bad : {":70%", ":0,7"})
        CHECK_THROWS_WITH(with(bad, ":1"), Contains("the weight of \"") && Contains("expected a number from 0.000001"));
    CHECK_THROWS_WITH(with("", ":1"), Contains("a_*.bin\" is without a weight"));
    for (const char* weight : {":0", ":-1", ":1e-7", ":0.1234567", ":1e10", ":nan"})
        CHECK_THROWS_WITH(with(":1", weight), Contains("; expected a number from 0.000001"));
    ShardBytes(counting(4)).write(folder / "x.bin:2");
    CHECK((!ShardSet(folder / "x.bin:2").is_weighted() && ShardSet(folder / "x.bin:2").size() == 1));
    CHECK(ShardSet(folder / "{B,a}_[0-9].bin").size() == 3);
    ShardBytes(counting(3)).write(folder / "odd[1].bin");
    CHECK(ShardSet(folder / "odd[1].bin").size() == 1);
}

TEST_CASE("the folders of a pattern that exist are taken literally; ** is refused", "[shard]") {
    const ScratchFolder folder;
    for (const char* const odd : {"x[1]", "{a,b}", "b\\1", "q?", "*", "~", "x[1]/{a,b}"}) {
        for (const std::string name : {odd, "x1", "a", "b1", "qq", "other"}) {
            std::filesystem::create_directories(folder / name);
            ShardBytes(counting(3)).write(folder / name / "t_0.bin");
        }
        CAPTURE(odd);
        for (const char* const end : {"t_*.bin", "t_[0-9].bin", "{s,t}_0.bin"}) {
            const ShardSet found((folder / odd / end).string());
            REQUIRE(found.size() == 1);
            CHECK(found.shards()[0].path() == folder / odd / "t_0.bin");
        }
    }
    CHECK(ShardSet(folder / "x[0-9]/t_?.bin").size() == 1);
    CHECK(ShardSet(folder / "{a,b1}/*.bin").size() == 2);
    CHECK_THROWS_WITH(ShardSet(folder / "**/t_0.bin"), Contains("/**/t_0.bin\"; expected one without \"**\""));
}

TEST_CASE("temporary files of a killed process are removed; those that may be another's refuse a writer", "[shard]") {
    const ScratchFolder folder;
    const std::string prefix = folder / "s";
    const auto partial = [&](const std::string& shard, const std::string& process) {
        return write_bytes(folder / (shard + ".bin.partial-" + process), "half");
    };
    const auto remove = [&] { return ShardSeriesWriter::remove_left_over(prefix); };
    const auto refused = [&](const std::string& first, const std::string& process) {
        CHECK_THAT(error_of([&] { remove(); }, Blame::input),
                   Contains("incomplete: \"" + first + "\" is being written") &&
                       EndsWith("remove \"" + prefix + "_*.bin.partial-" + process + '"'));
    };
    CHECK(remove() == 0);
    partial("s_b_000000", "7");  // of another series
    const std::string process = std::to_string(getppid()), here = std::to_string(getpid());  // have ids of killed ones
    const std::string first = partial("s_000000", process), second = partial("s_000001", process);
    const int lock = open(first.c_str(), O_RDONLY);
    REQUIRE(flock(lock, LOCK_EX) == 0);  // like a process here or on another host
    refused(first, process);
    std::filesystem::rename(first, folder / "s_000000.bin");  // it publishes
    refused(second, process);
    std::filesystem::rename(folder / "s_000000.bin", first);
    close(lock);
    CHECK(remove() == 2);
    CHECK(names_in(folder.path()).size() == 1);

    const std::string mark = partial("s_000000", "prepare"), pipe = folder / "s_000000.bin.partial-9";
    refused(mark, "prepare");
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    refused(pipe, "9");
    for (const std::string& file : {mark, pipe}) std::filesystem::remove(file);
    ShardSeriesWriter series(prefix, {50257, 50256}, 10);
    series.append(counting(15));
    refused(folder / ("s_000000.bin.partial-" + here), here);
    CHECK(series.publish().size() == 2);
}

TEST_CASE("an invalid set of shards is refused", "[shard]") {
    const ScratchFolder folder;
    CHECK_THROWS_WITH(ShardSet(folder / "*.bin"),
                      Contains('"' + (folder / "*.bin").string() + '"') && Contains("at least 1"));
    CHECK_THROWS_WITH(ShardSet(folder / "none.bin"), Contains(folder / "none.bin"));
    CHECK_THROWS_AS(ShardSet(std::vector<std::string>{}), Error);
    const std::string bytes = ShardBytes({1}, 257, 256).write(folder / "bytes.bin"),
                      gpt2 = ShardBytes({1}).write(folder / "gpt2.bin");
    CHECK_THROWS_WITH(ShardSet(folder / "*.bin"), Contains("50257 ids, end of text 50256 in " + gpt2) &&
                                                      Contains("257 ids, end of text 256 in " + bytes));
    const std::string other = ShardBytes({1}, 257, 0).write(folder / "bytes2.bin");
    CHECK_THROWS_WITH(ShardSet(folder / "bytes*"), Contains("end of text 0 in " + other));
}

TEST_CASE("the writer writes the exact bytes of a shard", "[shard]") {
    const ScratchFolder folder;
    const int size = GENERATE(1, 1000, 1 << 19, (1 << 19) + 1, 2'000'001);  // up to and beyond the buffer's size
    std::vector<std::uint16_t> ids = counting(size);
    ShardWriter writer(folder / "w.bin", {65536, 7});
    const auto half = ids.size() / 2;
    writer.append(std::span(ids).first(half));
    writer.append(std::span(ids).subspan(half));
    CHECK(writer.tokens() == size);
    CHECK_FALSE(std::filesystem::exists(folder / "w.bin"));
    writer.publish();
    CHECK(names_in(folder.path()) == std::set<std::string>{"w.bin"});
    CHECK((read_bytes(folder / "w.bin") == ShardBytes(ids, 65536, 7).bytes()));
    CHECK_THROWS_AS(writer.append(ids), Error);
}

TEST_CASE("no incomplete file remains", "[shard]") {
    const ScratchFolder folder;
    const std::vector<std::uint16_t> ids = counting(1000);
    SECTION("not published") {
        const std::string old = write_bytes(folder / "w.bin", "old");
        {
            ShardWriter writer(old, {});
            writer.append(ids);
            writer.seal();
            CHECK(names_in(folder.path()).size() == 2);
            const ShardWriter moved(std::move(writer));
            CHECK(names_in(folder.path()).size() == 2);
        }
        CHECK(names_in(folder.path()) == std::set<std::string>{"w.bin"});
        CHECK(read_bytes(old) == "old");
    }
    SECTION("no token") {
        ShardWriter writer(folder / "w.bin", {});
        CHECK_THROWS_WITH(writer.publish(), Contains("number of tokens is 0"));
    }
    SECTION("an id outside") {
        ShardWriter writer(folder / "w.bin", {1000, 0});
        writer.append(ids);
        CHECK_THROWS_WITH(writer.append(counting(3, 999)), Contains("is 1000") && Contains("vocabulary of 1000"));
    }
    CHECK((names_in(folder.path()).empty() || names_in(folder.path()) == std::set<std::string>{"w.bin"}));
}

TEST_CASE("a set of which some shards are not published is refused", "[shard]") {
    const ScratchFolder folder;
    std::vector<ShardWriter> writers;
    for (const char* name : {"s_000000.bin", "s_000001.bin", "s_b_000000.bin"}) {
        writers.emplace_back(folder / name, kByteVocabulary).append(counting(9));
        writers.back().seal();
    }
    const auto refused = [&](const char* pattern) {
        CHECK_THROWS_WITH(ShardSet(folder / pattern), Contains("the set of shards \"" + (folder / pattern).string() +
            "\" is incomplete: \"" + writers[1].temporary() + "\" is being written, or its writer was killed") &&
            EndsWith("whole without it, remove \"" + writers[1].temporary() + '"'));
    };
    CHECK_THROWS_WITH(ShardSet(folder / "s_0*.bin"), Contains("is incomplete: "));
    CHECK_THROWS_WITH(ShardSet(folder / "s_b_000000.bin"), Contains("is incomplete: "));
    writers[0].publish();
    for (const char* const pattern : {"s_0*.bin", "s_*", "*.bin", "{x,s_*1,s_*0}.bin", "s_000000.bin", "s_*00.bin"})
        refused(pattern);
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(folder.path());
    for (const char* const shard : {"s_000000.bin", ".//s_000000.bin"})
        CHECK_THROWS_WITH(ShardSet(shard), Contains("s_000001.bin.partial-"));
    std::filesystem::current_path(before);
    write_bytes(folder / "s_000000.bin.partial-7", "left over");
    writers[1].publish();
    for (const char* const pattern : {"s_0*.bin", "s_*", "*.bin"}) CHECK(ShardSet(folder / pattern).size() == 2);
    const auto odd = folder / "w.bin.partial-7";  // a folder with the name of a temporary file
    std::filesystem::create_directory(odd);
    CHECK(ShardSet(ShardBytes(counting(3)).write(odd / "s_000000.bin")).size() == 1);
}

TEST_CASE("a set is found as a whole or refused while its shards are renamed", "[shard]") {
    const ScratchFolder folder;
    constexpr int kShards = 50;
    ShardSeriesWriter series(folder / "s", kByteVocabulary, 1);
    series.append(counting(kShards));
    series.seal();
    const std::jthread publishing([&] { series.publish(); });
    for (std::int64_t found = 0; found < kShards;) {
        try {
            found = ShardSet(folder / "s_*.bin").size();
            REQUIRE(found == kShards);
        } catch (const Error& error) {
            REQUIRE_THAT(error.what(), Contains("is incomplete: "));
        }
    }
}
