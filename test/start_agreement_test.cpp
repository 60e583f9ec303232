// start_agreement_test.cpp - ranks that were started differently, or of which one cannot start, all hear the same before any goes on
#include "llmc/start_agreement.h"

#include "llmc/communicator_local.h"
#include "test/shard_support.h"

using namespace llmc;
using namespace test;
using Catch::Contains;

namespace {

// What every rank hears when `work` runs on all of them; "accepted" where it hears nothing.
std::vector<std::string> complaints(int ranks, const std::function<void(Communicator&)>& work) {
    std::vector<std::string> heard(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](Communicator& communicator) { heard[std::size_t(communicator.rank())] = complaint([&] { work(communicator); }); });
    return heard;
}

std::string on_this_host(int rank) {
    return "rank " + std::to_string(rank) + " on " + host_name();
}

std::string only(const std::vector<std::string>& heard) {
    for (const std::string& one : heard) CHECK(one == heard[0]);
    return heard[0];
}

}  // namespace

TEST_CASE("the first difference from rank 0 is named on every rank", "[start_agreement]") {
    const auto of_rank = [](const std::vector<std::vector<Fact>>& facts) {
        return only(complaints(int(facts.size()), [&](Communicator& ranks) { require_alike(ranks, facts[std::size_t(ranks.rank())], "MEND"); }));
    };
    const std::vector<Fact> one{{"--lr", "1"}, {"--seed", "1"}, {"--tf32", "false"}};
    CHECK(of_rank({one, one, one}) == "accepted");
    CHECK(of_rank({one}) == "accepted");
    std::vector<Fact> other = one;
    other[1].value = "2";
    other[2].value = "true";
    CHECK(of_rank({one, other}) == on_this_host(1) + " has --seed 2, " + on_this_host(0) + " has 1; MEND");
    CHECK(of_rank({one, one, other, other}) == on_this_host(2) + " (one of 2 that differ) has --seed 2, " + on_this_host(0) + " has 1; MEND");
    CHECK(of_rank({{{"a shard of", "5 tokens", "/a"}}, {{"a shard of", "6 tokens", "/b"}}}) ==
          on_this_host(1) + " has a shard of 6 tokens (/b), " + on_this_host(0) + " has 5 tokens (/a); MEND");
    CHECK(of_rank({{{"a shard of", "5 tokens", "/a"}}, {{"a shard of", "5 tokens", "/b"}}}) == "accepted");  // each where it has them
    CHECK(of_rank({{{"first", "1"}, {"second", "2"}}, {{"first", "1"}}}) ==
          on_this_host(1) + " has nothing more , " + on_this_host(0) + " has second 2; MEND");
    CHECK(of_rank({{{"--prompt", "\xff"}}, {{"--prompt", "a"}}}) ==  // not UTF-8
          on_this_host(1) + " has --prompt a, " + on_this_host(0) + " has \xef\xbf\xbd; MEND");
}

TEST_CASE("every flag is compared but for those that a host may have of its own", "[start_agreement]") {
    Options options, other;
    const auto heard = [&] {
        return only(complaints(2, [&](Communicator& ranks) {
            require_alike(ranks, facts_of_start(Request::run, ranks.rank() == 0 ? options : other), "MEND");
        }));
    };
    other.train_data = "elsewhere", other.val_data = "there", other.threads = 3, other.device = 1;
    CHECK(heard() == "accepted");
    other.output_dir = "out";
    CHECK(heard() == on_this_host(1) + " has --output-dir \"out\", " + on_this_host(0) + " has \"\"; MEND");
    other.lr = 1;
    CHECK_THAT(heard(), Contains(" has --lr 1.0, "));
    other.beta1 = 0.5;
    CHECK_THAT(heard(), Contains(" has --beta1 0.5, "));
    CHECK(facts_of_start(Request::run, options)[0].name == "train_gpt2");  // the build comes first
    const auto requests = only(complaints(2, [&](Communicator& ranks) {
        require_alike(ranks, facts_of_start(ranks.rank() == 0 ? Request::run : Request::help, options), "MEND");
    }));
    CHECK(requests == on_this_host(1) + " has --help true, " + on_this_host(0) + " has false; MEND");
}

TEST_CASE("data are the same if counts, vocabulary and contents are, wherever they lie", "[start_agreement]") {
    const TemporaryFolder folder;
    const auto heard = [&](const ShardBytes& theirs, bool validate = true) {
        const ShardBytes ours(counting(40000), 65536, 65535);
        ours.write(folder / "ours.bin");
        theirs.write(folder / "theirs.bin");
        return only(complaints(2, [&](Communicator& ranks) {
            const ShardSet shards(folder / (ranks.rank() == 0 ? "ours.bin" : "theirs.bin"));
            require_alike(ranks, facts_of_data(&shards, ranks.rank() == 0 || validate ? &shards : nullptr), "MEND");
        }));
    };
    ShardBytes other(counting(40000), 65536, 65535);
    CHECK(heard(other) == "accepted");
    CHECK_THAT(heard(other, false), Contains(on_this_host(1) + " has a number of validation shards of 0, " + on_this_host(0) + " has 1; MEND"));
    other.header[4] = 65534;
    CHECK_THAT(heard(other), Contains("has training shard 0 with 40000 tokens, vocabulary 65536, end of text 65534, ") &&
                                 Contains("theirs.bin") && Contains("ours.bin"));
    CHECK_THAT(heard(ShardBytes(counting(39999), 65536, 65535)), Contains("has training shard 0 with 39999 tokens"));
    for (const int at : {0, 20500, 39999}) {  // in the first, the ninth and the last of the 16 blocks
        other = ShardBytes(counting(40000), 65536, 65535);
        other.ids[std::size_t(at)] ^= 1;
        CAPTURE(at);
        CHECK_THAT(heard(other), Contains(", fingerprint "));
    }
}

TEST_CASE("nobody goes on when one cannot", "[start_agreement]") {
    const auto heard = [](int ranks, const std::function<int(int rank)>& work, Blame blame = Blame::input) {
        return only(complaints(ranks, [&](Communicator& communicator) {
            try {
                if (together(communicator, [&] { return work(communicator.rank()); }) != communicator.rank()) throw Error("another rank's result");
            } catch (const SharedError& error) {
                if (error.blame() != blame) throw Error("another blame");
                throw;
            }
        }));
    };
    CHECK(heard(3, [](int rank) { return rank; }) == "accepted");
    CHECK(heard(3, [](int rank) { return rank < 1 ? rank : throw Error("no file " + std::to_string(rank)); }) ==
          on_this_host(1) + " (one of 2 that failed): no file 1");
    CHECK(heard(3, [](int rank) { return rank != 2 ? rank : throw Error("no room", Blame::runtime); }, Blame::runtime) ==
          on_this_host(2) + ": no room");
    CHECK(heard(3, [](int rank) { return rank != 0 ? rank : throw std::runtime_error("unforeseen"); }, Blame::runtime) ==
          on_this_host(0) + ": unforeseen");
    CHECK(heard(3, [](int) -> int { throw Error("no such flag"); }) == "no such flag");  // the same everywhere: nobody is named
    CHECK_THROWS_AS(together(*alone(), []() -> int { throw std::bad_alloc(); }), std::bad_alloc);
}

TEST_CASE("what the first rank fails at ends all of them", "[start_agreement]") {
    const auto heard = [](const std::function<void(Communicator&)>& work) {
        int worked = 0;
        const auto said = only(complaints(3, [&](Communicator& communicator) {
            on_first_rank(communicator, [&] {
                ++worked;
                work(communicator);
            });
        }));
        CHECK(worked == 1);
        return said;
    };
    CHECK(heard([](Communicator&) {}) == "accepted");
    CHECK(heard([](Communicator& communicator) { throw Error("no room for rank " + std::to_string(communicator.rank())); }) ==
          on_this_host(0) + ": no room for rank 0");
}
