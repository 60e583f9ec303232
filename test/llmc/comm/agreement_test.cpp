// agreement_test.cpp - different settings, or the failure of one rank, cause the same error on all ranks
#include "llmc/comm/agreement.h"

#include "test/support/agreement_support.h"
#include "test/support/support.h"

using namespace llmc;
using namespace test;

TEST_CASE("the first difference from rank 0 is named on every rank", "[start_agreement]") {
    const auto of_rank = [](const std::vector<std::vector<Fact>>& facts) {
        return only(complaints(int(facts.size()), [&](Communicator& ranks) {
            require_same(ranks, facts[std::size_t(ranks.rank())], "HINT");
        }));
    };
    const std::vector<Fact> one{{"--lr", "1"}, {"--seed", "1"}, {"--tf32", "false"}};
    CHECK(of_rank({one, one, one}) == "accepted");
    CHECK(of_rank({one}) == "accepted");
    std::vector<Fact> other = one;
    other[1].value = "2";
    other[2].value = "true";
    CHECK(of_rank({one, other}) == on_this_host(1) + " has --seed 2, " + on_this_host(0) + " has 1; HINT");
    CHECK(of_rank({one, one, other, other}) ==
          on_this_host(2) + " (one of 2 that differ) has --seed 2, " + on_this_host(0) + " has 1; HINT");
    CHECK(of_rank({{{"a shard of", "5 tokens", "/a"}}, {{"a shard of", "6 tokens", "/b"}}}) ==
          on_this_host(1) + " has a shard of 6 tokens (/b), " + on_this_host(0) + " has 5 tokens (/a); HINT");
    // paths may differ
    CHECK(of_rank({{{"a shard of", "5 tokens", "/a"}}, {{"a shard of", "5 tokens", "/b"}}}) == "accepted");
    CHECK(of_rank({{{"first", "1"}, {"second", "2"}}, {{"first", "1"}}}) ==
          on_this_host(1) + " has no further setting, " + on_this_host(0) + " has second 2; HINT");
    CHECK(of_rank({{{"--prompt", "\xff"}}, {{"--prompt", "a"}}}) ==  // not UTF-8
          on_this_host(1) + " has --prompt a, " + on_this_host(0) + " has \xef\xbf\xbd; HINT");
}

TEST_CASE("the failure of one rank is an error on all ranks", "[start_agreement]") {
    const auto heard = [](int ranks, const std::function<int(int rank)>& work, Blame blame = Blame::input) {
        return only(complaints(ranks, [&](Communicator& communicator) {
            try {
                if (together(communicator, [&] { return work(communicator.rank()); }) != communicator.rank())
                    throw Error("another rank's result");
            } catch (const SharedError& error) {
                if (error.blame() != blame) throw Error("another blame");
                throw;
            }
        }));
    };
    CHECK(heard(3, [](int rank) { return rank; }) == "accepted");
    CHECK(heard(3, [](int rank) { return rank < 1 ? rank : throw Error("no file " + std::to_string(rank)); }) ==
          on_this_host(1) + " (one of 2 that failed): no file 1");
    CHECK(heard(3, [](int rank) { return rank != 2 ? rank : throw Error("no room", Blame::runtime); },
                Blame::runtime) ==
          on_this_host(2) + ": no room");
    CHECK(heard(3, [](int rank) { return rank != 0 ? rank : throw std::runtime_error("unforeseen"); },
                Blame::runtime) ==
          on_this_host(0) + ": unforeseen");
    // the same on all ranks: no rank is named
    CHECK(heard(3, [](int) -> int { throw Error("no such flag"); }) == "no such flag");
    // a single rank
    CHECK(heard(1, [](int) -> int { throw Error("no room", Blame::runtime); }, Blame::runtime) == "no room");
    CHECK(heard(1, [](int) -> int { throw std::range_error("unforeseen"); }, Blame::runtime) == "unforeseen");
    CHECK_THAT(heard(1, [](int) -> int { throw std::bad_alloc(); }, Blame::runtime),
               test::StartsWith("host memory is exhausted"));
}

TEST_CASE("a failure of the first rank is an error on all ranks", "[start_agreement]") {
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
    CHECK(heard([](Communicator& communicator) {
              throw Error("no room for rank " + std::to_string(communicator.rank()));
          }) == on_this_host(0) + ": no room for rank 0");
}

TEST_CASE("collectives end before a shared error, and are abandoned by an error of one rank", "[start_agreement]") {
    const auto own_error = [](Communicator&) { throw Error("no room"); };
    const auto shared_error = [&](Communicator& ranks) { together(ranks, [&] { own_error(ranks); }); };
    const auto sums_after = [](const std::function<void(Communicator&)>& fail) {
        std::vector<float> sums(2);
        run_ranks(2, [&](Communicator& ranks) {
            const auto data = on_device(std::vector<float>(16, 1));
            error_of([&] {
                const auto part = ranks.split(0);
                part->group_begin(nullptr);
                part->all_reduce(data.span());
                part->group_end();
                fail(ranks);
            });
            sums[std::size_t(ranks.rank())] = data.download(nullptr)[0];
        }, {.order = LocalOrder::late});
        return sums;
    };
    CHECK(sums_after(shared_error) == std::vector<float>{2, 2});
    CHECK(sums_after(own_error) == std::vector<float>{1, 1});
    CHECK(sums_after([&](Communicator& ranks) {  // after another group an older shared error says nothing
        error_of([&] { shared_error(ranks); });
        ranks.group_begin(nullptr);
        ranks.group_end();
        own_error(ranks);
    }) == std::vector<float>{1, 1});
}
