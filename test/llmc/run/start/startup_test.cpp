// startup_test.cpp - what must be the same on all ranks: flags, except those of the host, and data, by content
#include "llmc/run/start/startup.h"

#include "test/support/agreement_support.h"

using namespace llmc;
using namespace test;

TEST_CASE("every flag is compared, except those that may differ between hosts",
          "[start_agreement][statistics]") {
    RunSettings options = all_decided({}), other = options;
    const auto heard = [&] {
        return only(complaints(2, [&](Communicator& ranks) {
            require_same(ranks, command_line_facts({.settings = ranks.rank() == 0 ? options : other}), "HINT");
        }));
    };
    other.data.train = {"elsewhere"}, other.data.val = {"there"};
    other.placement.threads = 3, other.placement.device = 1;
    CHECK(heard() == "accepted");
    other.checkpoints.output_dir = "out";
    CHECK(heard() == on_this_host(1) + " has --output-dir \"out\", " + on_this_host(0) + " has \"\"; HINT");
    other.schedule.curve.peak = 1;
    CHECK_THAT(heard(), Contains(" has --lr 1.0, "));
    other.optimizer.beta1 = 0.5;
    CHECK_THAT(heard(), Contains(" has --beta1 0.5, "));
    CHECK(command_line_facts({.settings = options})[0].name == "train_gpt2");  // the build comes first
    const auto requests = only(complaints(2, [&](Communicator& ranks) {
        require_same(ranks, command_line_facts({ranks.rank() == 0 ? Request::run : Request::help, options}), "HINT");
    }));
    CHECK(requests == on_this_host(1) + " has --help true, " + on_this_host(0) + " has false; HINT");
}

TEST_CASE("data with the same counts, vocabulary and contents are the same, whatever their path", "[start_agreement]") {
    const ScratchFolder folder;
    const auto heard = [&](const ShardBytes& theirs, bool validate = true) {
        const ShardBytes ours(counting(40000), 65536, 65535);
        ours.write(folder / "ours.bin");
        theirs.write(folder / "theirs.bin");
        return only(complaints(2, [&](Communicator& ranks) {
            const ShardSet shards(folder / (ranks.rank() == 0 ? "ours.bin" : "theirs.bin"));
            const bool has_them = ranks.rank() == 0 || validate;
            require_same(ranks, shard_facts("training", has_them ? &shards : nullptr), "HINT");
        }));
    };
    ShardBytes other(counting(40000), 65536, 65535);
    CHECK(heard(other) == "accepted");
    CHECK_THAT(heard(other, false), Contains(on_this_host(1) + " has a number of training shards of 0, " +
                                             on_this_host(0) + " has 1; HINT"));
    other.header[4] = 65534;
    CHECK_THAT(heard(other),
               Contains("has training shard 0 with 40000 tokens, vocabulary 65536, end of text 65534, ") &&
                   Contains("theirs.bin") && Contains("ours.bin"));
    CHECK_THAT(heard(ShardBytes(counting(39999), 65536, 65535)), Contains("has training shard 0 with 39999 tokens"));
    for (const int at : {0, 20500, 39999}) {  // in the first, the ninth and the last of the 16 blocks
        other = ShardBytes(counting(40000), 65536, 65535);
        other.ids[std::size_t(at)] ^= 1;
        CAPTURE(at);
        CHECK_THAT(heard(other), Contains(", fingerprint "));
    }
}

TEST_CASE("a validation set has the weight of its pattern, else that of training", "[start]") {
    const ScratchFolder folder;
    for (const char* const name : {"a", "b", "c", "d"}) ShardBytes(counting(9), 257, 256).write(folder / name);
    const auto last_fact = [&](const std::string& of_a, const std::string& of_b, std::vector<std::string> val) {
        RunSettings options;
        options.data.train = {(folder / "a").string() + of_a, (folder / "b").string() + of_b};
        for (std::string& name : val) name = (folder / name).string();
        options.data.val = val;
        return open_files(options).val_facts.back().value;
    };
    CHECK(last_fact(":3", ":7", {"c", "d"}) == "weight 7 and 1 shard");
    CHECK(last_fact(":3", ":7", {"c:1", "d:2"}) == "weight 2 and 1 shard");
    CHECK(last_fact("", "", {"c", "d"}) == "weight 0 and 1 shard");  // sets with losses of their own
    CHECK_THAT(last_fact(":3", ":7", {"c"}), StartsWith("9 tokens, "));
}
