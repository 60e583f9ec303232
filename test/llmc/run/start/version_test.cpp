// version_test.cpp - the version line, and builds of different commits
#include "llmc/run/start/version.h"

#include <nlohmann/json.hpp>

#include "llmc/run/start/startup.h"
#include "test/support/agreement_support.h"

using namespace llmc;
using namespace test;

TEST_CASE("the version line omits unknown values", "[version]") {
    CHECK(version_text({{"train_gpt2", "1.2"}, {"commit", "abc-dirty"}, {"device", "cpu"}}) ==
          "train_gpt2 1.2, commit abc-dirty, device cpu\n");
    CHECK(version_text({{"train_gpt2", "1.2"}, {"commit", nullptr}, {"device", "cpu"}}) ==
          "train_gpt2 1.2, device cpu\n");
}

TEST_CASE("ranks with different commits are refused, also if a commit is unknown", "[version][start_agreement]") {
    const auto heard = [](const nlohmann::ordered_json& ours, const nlohmann::ordered_json& theirs) {
        return only(complaints(2, [&](Communicator& ranks) {
            require_same(ranks, build_facts({{"commit", ranks.rank() == 0 ? ours : theirs}}), "HINT");
        }));
    };
    CHECK(heard("abc", "abc") == "accepted");
    CHECK(heard(nullptr, nullptr) == "accepted");
    CHECK(heard("abc", "def") == on_this_host(1) + " has commit def, " + on_this_host(0) + " has abc; HINT");
    CHECK(heard("abc", nullptr) == on_this_host(1) + " has commit unknown, " + on_this_host(0) + " has abc; HINT");
}
