// plan_choice_test.cpp - which plan of a library is selected for a pass of attention, with fake plans whose names are
// their run times
#include "kernels/attention/plan_choice.h"

#include <chrono>
#include <set>
#include <thread>

#include "test/support/support.h"

using namespace kernels;

namespace {

struct FakePlans {
    std::vector<std::string> names;       // units of 5 ms: on a busy machine a sleep is longer by milliseconds
    std::set<std::string> unsteady{};     // results differ from run to run
    std::string selected = names.front();
    int runs = 0;

    PlanLibrary library() {
        return {.name = "lib 1", .problem = "forward", .plans = [this] { return names; },
                .select =
                    [this](const std::string& plan) {
                        if (std::ranges::find(names, plan) == names.end()) return false;
                        selected = plan;
                        return true;
                    },
                .run =
                    [this] {
                        ++runs;
                        std::this_thread::sleep_for(std::chrono::milliseconds(5 * std::stoi(selected)));
                    },
                .repeats = [this] { return !unsteady.contains(selected); }};
    }
};

}  // namespace

TEST_CASE("the fastest repeatable plan is selected, and later found by name", "[attention][tuning][host_time]") {
    FakePlans fake{.names = {"8", "2", "4"}};
    TunedAlgorithms tuned;
    choose_plan(fake.library(), tuned, nullptr);
    CHECK(fake.selected == "2");
    const TunedAlgorithm kept = tuned.timed().at("lib 1").at("forward");
    CHECK((kept.taken == "2" && kept.seconds >= 0.01));

    FakePlans later{.names = {"8", "4", "2"}};
    CHECK(select_stored_plan(later.library(), &tuned));
    CHECK((later.selected == "2" && later.runs == 0));
    FakePlans without{.names = {"8", "4"}};  // a library that lacks it
    CHECK(!select_stored_plan(without.library(), &tuned));
    CHECK(without.selected == "8");
    CHECK(count(tuned.known) == 0);        // so that it is timed again
    CHECK(!select_stored_plan(without.library(), nullptr));

    FakePlans unsteady{.names = {"8", "2", "4"}, .unsteady = {"2"}};
    choose_plan(unsteady.library(), tuned, nullptr);
    CHECK(unsteady.selected == "4");
    FakePlans none{.names = {"4", "2"}, .unsteady = {"2", "4"}};
    TunedAlgorithms others;
    choose_plan(none.library(), others, nullptr);
    CHECK(none.selected == "4");
    CHECK((count(others.known) == 0 && others.notes().size() == 1));
}

TEST_CASE("a library's only plan is not timed", "[attention][tuning]") {
    FakePlans fake{.names = {"8"}};
    TunedAlgorithms tuned;
    choose_plan(fake.library(), tuned, nullptr);
    CHECK((fake.runs == 0 && count(tuned.known) == 0));
}
