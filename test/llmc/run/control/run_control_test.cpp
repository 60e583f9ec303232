// run_control_test.cpp - when a run ends, what is due before its next step, and that all ranks agree
#include "llmc/run/control/run_control.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "llmc/base/clock.h"
#include "test/support/catch.h"
#include "test/support/communicator_local.h"

using namespace llmc;

namespace {

constexpr RunControl::Settings kBoth{.total_steps = 4, .val_every = 2, .sample_every = 4, .saves = true};
constexpr double kPassed = 1e-9;  // minutes, less than do_what_is_due() takes

// What is due, in order: v validation, h HellaSwag, s samples, c checkpoint; then "." if another step follows.
std::string due(const RunControl& control) {
    return std::string(control.validation_due() ? "v" : "") + (control.hellaswag_due() ? "h" : "") +
           (control.samples_due() ? "s" : "") +
           (control.checkpoint_due() ? "c" : "") + (control.ends() ? "" : ".");
}

// Does what is due after `step`, and returns it.
std::string do_what_is_due(RunControl& control, std::int64_t step, const RankRequests& requests = {}) {
    std::this_thread::sleep_for(std::chrono::microseconds(1));
    control.agree(requests);
    control.reach(step);
    const std::string all = due(control);
    CHECK(control.pauses() == (all != "."));
    if (control.validation_due()) control.end_validation(0);
    if (control.hellaswag_due()) control.end_hellaswag(0);
    if (control.samples_due()) control.end_samples(0);
    if (control.checkpoint_due()) control.checkpoint_begun();
    control.agree(requests);
    control.reach(step);
    CHECK(due(control) == (control.ends() ? "" : "."));  // once a step
    return all;
}

// From step `first` to the last of four.
std::vector<std::string> all_steps(RunControl control, std::int64_t first = 0) {
    std::vector<std::string> all;
    for (std::int64_t step = first; step <= 4; ++step) all.push_back(do_what_is_due(control, step));
    CHECK(control.reason() == std::string("all steps completed"));
    return all;
}

}  // namespace

TEST_CASE("a run does what is due between steps, and saves when it ends", "[run_control]") {
    const auto ranks = alone();
    using All = std::vector<std::string>;
    CHECK(all_steps({kBoth, *ranks}) == All{"v.", ".", "v.", ".", "vsc"});
    CHECK(all_steps({{.total_steps = 4, .val_every = 3}, *ranks}) == All{"v.", ".", ".", "v.", "v"});
    CHECK(all_steps({{.total_steps = 4, .hellaswag_every = 3}, *ranks}) == All{".", ".", ".", "h.", "h"});
    CHECK(all_steps({{.total_steps = 4, .checkpoint_every = 3}, *ranks}) == All{".", ".", ".", ".", ""});  // no folder
    CHECK(all_steps({{.total_steps = 4, .checkpoint_every = 3, .saves = true}, *ranks}) ==
          All{".", ".", ".", "c.", "c"});
    CHECK(all_steps({{.total_steps = 4, .checkpoint_minutes = kPassed, .saves = true}, *ranks}) ==
          All{"c.", "c.", "c.", "c.", "c"});
}

TEST_CASE("a resumed run does what is pending, and does not save the same step again", "[run_control]") {
    const auto ranks = alone();
    using All = std::vector<std::string>;
    RunControl done(kBoth, *ranks), left(kBoth, *ranks), ended(kBoth, *ranks), over(kBoth, *ranks);
    done.restore({.step = 2});
    CHECK(all_steps(done, 2) == All{".", ".", "vsc"});
    left.restore({.step = 2, .validated = false});
    CHECK(all_steps(left, 2) == All{"v.", ".", "vsc"});
    ended.restore({.step = 4, .sampled = false});
    CHECK(all_steps(ended, 4) == All{"s"});
    RunControl scores({.total_steps = 4, .hellaswag_every = 2}, *ranks);
    RunControl late({.total_steps = 4, .hellaswag_every = 2, .max_minutes = kPassed, .saves = true}, *ranks);
    CHECK(do_what_is_due(late, 2) == "c");
    CHECK(late.hellaswag_pending());
    scores.restore({.step = 2, .scored = false});
    CHECK(all_steps(scores, 2) == All{"h.", ".", "h"});
    over.restore({.step = 4});
    CHECK(all_steps(over, 4) == All{""});
    RunControl more({.total_steps = 4, .val_every = 3}, *ranks), none({.total_steps = 4}, *ranks);
    more.restore({.step = 2});  // the end of a shorter run
    CHECK(all_steps(more, 2) == All{".", "v.", "v"});
    none.restore({.step = 2, .validated = false});
    CHECK(all_steps(none, 2) == All{".", ".", ""});
    // Another folder has no checkpoint yet.
    RunControl branch({.total_steps = 4, .checkpoint_every = 2, .saves = true, .branches = true}, *ranks),
        finished({.total_steps = 4, .saves = true, .branches = true}, *ranks);
    branch.restore({.step = 2});
    CHECK(all_steps(branch, 2) == All{".", ".", "c"});
    finished.restore({.step = 4});
    CHECK(all_steps(finished, 4) == All{"c"});
}

TEST_CASE("a signal, a failure or the time limit ends a run", "[run_control]") {
    const auto ranks = alone();
    RunControl control(kBoth, *ranks);
    CHECK(do_what_is_due(control, 2) == "v.");
    CHECK(do_what_is_due(control, 3, {.signal = 15}) == "c");
    CHECK(control.signal() == 15);
    CHECK(control.reason() == std::string("interrupted"));

    RunControl early(kBoth, *ranks);  // a signal ends a validation, which stays pending
    early.reach(2);
    early.end_validation(2);
    CHECK(due(early) == "c");
    CHECK(early.validation_pending());
    CHECK_FALSE(early.samples_pending());

    RunControl at_end({.total_steps = 4, .val_every = 3}, *ranks);  // also after the last step
    at_end.reach(4);
    at_end.end_validation(2);
    CHECK(at_end.validation_pending());

    RunControl failing(kBoth, *ranks);
    CHECK(do_what_is_due(failing, 0, {.failed = true}) == "");  // nothing has been trained
    CHECK(do_what_is_due(failing, 1, {.failed = true}) == "c");
    CHECK(failing.reason() == std::string("error"));

    RunControl last(kBoth, *ranks);
    last.reach(4);
    last.fail();
    CHECK(due(last) == "c");
    CHECK(last.reason() == std::string("error"));

    RunControl late(kBoth, *ranks);  // HellaSwag ran out of time: samples and the checkpoint follow
    late.reach(3);
    late.run_out_of_time();
    CHECK(due(late) == "vsc");
    CHECK(late.reason() == std::string("out of time (--max-minutes)"));

    RunControl timed({.total_steps = 4, .val_every = 2, .max_minutes = kPassed, .saves = true}, *ranks);
    CHECK(do_what_is_due(timed, 1) == "vc");
    CHECK(timed.reason() == std::string("out of time (--max-minutes)"));
}

TEST_CASE("a lower validation loss makes a checkpoint due; too many without one end the run", "[run_control]") {
    const auto ranks = alone();
    const RunControl::Settings settings{.total_steps = 9, .val_every = 1, .stop_after = 2, .keep_best = true,
                                        .saves = true};
    RunControl control(settings, *ranks), stopped(settings, *ranks), saved(settings, *ranks);
    const auto after = [](RunControl& run, std::int64_t step, const HealthState& health) {
        run.reach(step);
        run.end_validation(0);
        run.after_validation(health);
        return due(run);
    };
    CHECK(after(control, 1, {.best_validation_after = 1}) == "c.");
    control.checkpoint_begun();
    CHECK(after(control, 2, {.best_validation_after = 1, .validations_since_best = 1}) == ".");
    CHECK(after(control, 3, {.best_validation_after = 1, .validations_since_best = 2}) == "c");
    CHECK(control.reason() == std::string("no lower validation loss (--stop-after)"));
    stopped.restore({.step = 3, .health = {.best_validation_after = 1, .validations_since_best = 2}});
    stopped.reach(3);
    CHECK(due(stopped) == "");
    saved.restore({.step = 3, .validated = false});  // a signal came before the validation: its checkpoint is there
    CHECK(after(saved, 3, {.best_validation_after = 3}) == ".");
}

TEST_CASE("any rank's request applies to all ranks", "[run_control]") {
    std::vector<std::string> seen(3);
    run_ranks(3, [&](Communicator& ranks) {
        const int rank = ranks.rank();
        RunControl control({.total_steps = 9, .saves = true}, ranks);
        const auto note = [&](std::int64_t step, const RankRequests& mine) {
            control.agree(mine);
            control.reach(step);
            seen[std::size_t(rank)] += due(control) + (control.save_requested() ? "a" : "") +
                                       (control.failed() ? "f" : "") +
                                       std::to_string(control.signal()) + ' ';
        };
        note(1, {.save = rank == 1});
        note(2, {.signal = rank == 0 ? 10 : rank == 1 ? 15 : 0});
        note(3, {.failed = rank == 2});
        note(4, {});
    });
    for (const std::string& one : seen) CHECK(one == "c.a0 c15 cf0 .0 ");
}

TEST_CASE("a stop of any rank is no time of the run, and none is left out twice", "[run_control]") {
    constexpr double kStop = 0.2;  // seconds, of a minute
    std::vector<double> shares(3), stopped(3);
    run_ranks(3, [&](Communicator& ranks) {
        const auto rank = std::size_t(ranks.rank());
        RunControl control({.max_minutes = 1, .timed = true}, ranks);
        const double began = seconds_now();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        control.leave_out_stops(rank == 1 ? kStop : 0);
        CHECK((control.stopped() == kStop && control.seconds() <= seconds_now() - began - kStop + 0.1));
        // Rank 2 was stopped at about the same time, and reports it one agreement later.
        control.agree({.stopped = rank == 1 ? kStop : rank == 2 ? kStop + 0.05 : 0});
        CHECK(control.stopped() < seconds_now() - began + 0.05);
        CHECK(control.share() >= 0);
        stopped[rank] = control.stopped();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        control.agree({.stopped = rank == 1 ? 2 * kStop : rank == 2 ? kStop + 0.05 : 0});  // a second stop
        CHECK(control.stopped() > stopped[rank] + kStop / 2);
        shares[rank] = control.share();
    });
    for (const double share : shares) CHECK((share == shares[0] && share > 0));
    for (const double one : stopped) CHECK((one == stopped[0] && one > kStop));
}

TEST_CASE("a run whose length is a time has the same share on all ranks, and ends early enough", "[run_control]") {
    constexpr RunControl::Settings kTimed{.val_every = 9, .max_minutes = 1e6, .timed = true};  // 6e7 s
    std::vector<double> first(3), second(3), late(3);
    run_ranks(3, [&](Communicator& ranks) {
        const auto rank = std::size_t(ranks.rank());
        RunControl control(kTimed, ranks);
        control.restore({.step = 5, .seconds = {.used = 1.5e7, .validation = 1, .checkpoint = 2}});
        control.validation_took(2e7 - 2 + double(rank));  // 40e6 s for training; the slowest rank decides
        control.agree({});
        first[rank] = control.share();
        control.agree({});
        second[rank] = control.share();
        control.reach(5);
        CHECK_FALSE(control.ends());
        CHECK(control.run_seconds().used >= 1.5e7);
        CHECK(control.run_seconds().checkpoint == 2);
        control.samples_took(5e7);  // more than there is: half of the time is for training
        control.agree({});
        late[rank] = control.share();
    });
    for (std::size_t rank = 0; rank < 3; ++rank) {
        CHECK((first[rank] > 0.375 && first[rank] < 0.3750001));
        CHECK(first[rank] == first[0]);
        CHECK((second[rank] >= first[rank] && second[rank] == second[0]));
        CHECK((late[rank] > 0.5 && late[rank] < 0.5000001 && late[rank] == late[0]));
    }
    const auto ranks = alone();
    // A validation before the first step, also of an earlier start, is not part of the training.
    RunControl fresh(kTimed, *ranks);
    fresh.restore({.step = 0, .validated = false, .seconds = {.used = 1e7}});
    fresh.reach(0);
    fresh.validation_took(2e7);
    fresh.agree({});
    CHECK((fresh.share() >= 0 && fresh.share() < 1e-7 && fresh.run_seconds().before_training >= 1e7));
    fresh.reach(9);
    fresh.validation_took(2e7);
    CHECK(fresh.run_seconds().before_training < 1e7 + 1);
    RunControl later(kTimed, *ranks);
    later.restore({.step = 5, .seconds = {.used = 2.5e7, .before_training = 1e7, .validation = 2e7}});
    later.agree({});
    CHECK((later.share() > 0.5 && later.share() < 0.5000001));  // 1.5e7 s of 3e7 s
    for (const double used : {2.9e7, 3.1e7}) {  // 4.5e7 s for training; another validation takes a third of them
        RunControl near_end(kTimed, *ranks);
        near_end.restore({.step = 8, .seconds = {.used = used, .validation = 1.5e7}});
        near_end.agree({});
        near_end.reach(9);
        CHECK((near_end.validation_due() == (used < 3e7) && !near_end.ends()));
    }
    RunControl none_left(kTimed, *ranks);
    none_left.restore({.step = 0, .validated = false, .seconds = {.used = 6e7}});
    none_left.reach(0);
    none_left.validation_took(1);
    none_left.agree({});
    CHECK(none_left.share() == 1);
    RunControl over(kTimed, *ranks);
    over.restore({.step = 5, .seconds = {.used = 5.5e7, .validation = 1e7}});
    over.agree({});
    over.reach(5);
    CHECK((over.ends() && over.share() == 1 && over.run_seconds().used == 6e7));
    CHECK(over.reason() == std::string("out of time (--max-minutes)"));
}
