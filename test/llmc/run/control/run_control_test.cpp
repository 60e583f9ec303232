// run_control_test.cpp - when a run ends, which tasks are due before its next step, and that all ranks agree
#include "llmc/run/loop/tasks.h"

#include <thread>
#include <vector>

#include "test/support/catch.h"
#include "test/support/communicator_local.h"

using namespace llmc;

namespace {

constexpr double kPassed = 1e-9;  // minutes, less than do_what_is_due() takes

struct Settings {
    RunControl::Settings control{};
    std::int64_t steps = 4;
    std::int64_t val_every = 0, hellaswag_every = 0, sample_every = 0, checkpoint_every = 0;
};
const Settings kBoth{.val_every = 2, .sample_every = 4};

// A run whose tasks write a letter: v validation, h HellaSwag, s samples, c checkpoint; then "." if another step
// follows.
struct Run {
    Run(const Settings& settings, Communicator& ranks, const TrainerState* resumed = nullptr, bool branches = false)
        : control(settings.control, ranks),
          tasks({task(kValidationTask, settings.val_every, "v"), task(kHellaSwagTask, settings.hellaswag_every, "h"),
                 task(kSamplesTask, settings.sample_every, "s"),
                 {.name = kCheckpointTask, .every = settings.checkpoint_every, .saves = true,
                  .run = [this]() -> std::optional<double> {
                      done += 'c';
                      control.checkpoint_begun();
                      return took;
                  }}},
                control),
          steps(settings.control.timed ? -1 : settings.steps) {
        if (!resumed) return;
        control.restore(*resumed);
        tasks.restore(*resumed, branches);
    }
    Task task(const char* name, std::int64_t every, const char* letter) {
        const bool validates = *letter == 'v', scores = *letter == 'h';
        return {.name = name, .every = every, .before_steps = validates, .at_the_end = !scores,
                .run = [this, letter] {
                    done += letter;
                    if (signal != 0) control.interrupt(signal);
                    return signal != 0 ? std::optional<double>() : took;
                }};
    }
    // After `step` steps.
    std::string due(std::int64_t step) {
        done.clear();
        control.reach(step == steps);
        tasks.reach(step, step == steps);
        const bool pauses = tasks.pauses();
        while (tasks.run_next()) {}
        done += control.ends() ? "" : ".";
        CHECK(pauses == (done != "." || control.ends()));
        return done;
    }

    RunControl control;
    std::string done;
    int signal = 0;  // that ends every task
    double took = 0;  // the seconds of every task
    Tasks tasks;
    std::int64_t steps;
};

// Does what is due after `step`, and returns it.
std::string do_what_is_due(Run& run, std::int64_t step, const RankRequests& requests = {}) {
    std::this_thread::sleep_for(std::chrono::microseconds(1));
    run.control.agree(requests);
    const std::string all = run.due(step);
    run.control.agree(requests);
    CHECK(run.due(step) == (run.control.ends() ? "" : "."));  // once a step
    return all;
}

// From the first step, or the one of `resumed`, to the last of four.
std::vector<std::string> all_steps(const Settings& settings, const TrainerState* resumed = nullptr,
                                   bool branches = false) {
    const auto ranks = alone();
    Run run(settings, *ranks, resumed, branches);
    std::vector<std::string> all;
    for (std::int64_t step = resumed ? resumed->step : 0; step <= 4; ++step) all.push_back(do_what_is_due(run, step));
    CHECK(run.control.reason() == std::string("all steps completed"));
    return all;
}
std::vector<std::string> resumed_at(std::int64_t step, const Settings& settings, const char* pending = nullptr,
                                    bool branches = false) {
    TrainerState state{.step = step};
    if (pending) state.tasks[pending].pending = true;
    return all_steps(settings, &state, branches);
}

}  // namespace

TEST_CASE("a run does what is due between steps, and saves when it ends", "[run_control]") {
    using All = std::vector<std::string>;
    CHECK(all_steps(kBoth) == All{"v.", ".", "v.", ".", "vsc"});
    CHECK(all_steps({.val_every = 3}) == All{"v.", ".", ".", "v.", "vc"});
    CHECK(all_steps({.hellaswag_every = 3}) == All{".", ".", ".", "h.", "hc"});
    CHECK(all_steps({.checkpoint_every = 3}) == All{".", ".", ".", "c.", "c"});
    CHECK(all_steps({.control = {.checkpoint_minutes = kPassed}}) == All{"c.", "c.", "c.", "c.", "c"});
}

TEST_CASE("a resumed run does what is pending, and does not save the same step again", "[run_control]") {
    using All = std::vector<std::string>;
    CHECK(resumed_at(2, kBoth) == All{".", ".", "vsc"});
    CHECK(resumed_at(2, kBoth, kValidationTask) == All{"v.", ".", "vsc"});
    CHECK(resumed_at(4, kBoth, kSamplesTask) == All{"s"});
    CHECK(resumed_at(2, {.hellaswag_every = 2}, kHellaSwagTask) == All{"h.", ".", "hc"});
    CHECK(resumed_at(4, kBoth) == All{""});
    CHECK(resumed_at(2, {.val_every = 3}) == All{".", "v.", "vc"});  // the end of a shorter run
    CHECK(resumed_at(2, {}, kValidationTask) == All{".", ".", "c"});
    // Another folder has no checkpoint yet.
    CHECK(resumed_at(2, {.checkpoint_every = 2}, nullptr, /*branches=*/true) == All{".", ".", "c"});
    CHECK(resumed_at(4, {}, nullptr, /*branches=*/true) == All{"c"});
}

TEST_CASE("tasks and checkpoints to come take as long as the last ones", "[run_control]") {
    const auto ranks = alone();
    Run run({.steps = 100, .val_every = 30, .hellaswag_every = 50, .checkpoint_every = 40}, *ranks);
    CHECK(run.tasks.seconds_left(0, 100) == 0);
    run.took = 2;
    CHECK(run.due(0) == "v.");
    CHECK(run.tasks.seconds_left(1, 100) == 4 * 2);  // after 30, 60, 90 and 100
    CHECK(run.tasks.seconds_left(30, 100) == 4 * 2);
    CHECK(run.tasks.seconds_left(31, 100) == 3 * 2);
    CHECK(run.tasks.seconds_left(100, 100) == 2);
    run.took = 0.25;
    CHECK(run.due(40) == "c.");  // training waited, also after 80
    run.tasks.save_took(8);      // after 100
    CHECK(run.tasks.seconds_left(40, 100) == 3 * 2 + 2 * 0.25 + 8);
    CHECK(run.tasks.seconds_left(100, 100) == 2 + 8);
    run.took = 16;
    CHECK(run.due(50) == "h.");
    const auto [used, left, longest] = run.tasks.evaluation(51, 100);
    CHECK((used == 2 + 16 && left == 3 * 2 + 16 && longest->name == std::string(kHellaSwagTask)));
    CHECK(run.tasks.steps_within(60, 2 - 2. / 30 - 16. / 50 - 0.25 / 40) == 30);
    // A checkpoint has the seconds of validations and of the one before.
    const TrainerState saved{.step = 50, .tasks = run.tasks.states()};
    CHECK(Run({.steps = 100, .val_every = 30}, *ranks, &saved).tasks.seconds_left(51, 100) == 3 * 2 + 8);
    CHECK(Run({.steps = 60}, *ranks, &saved).tasks.seconds_left(51, 100) == 8);
}

TEST_CASE("a signal, a failure or the time limit ends a run", "[run_control]") {
    const auto ranks = alone();
    Run run(kBoth, *ranks);
    CHECK(do_what_is_due(run, 2) == "v.");
    CHECK(do_what_is_due(run, 3, {.signal = 15}) == "c");
    CHECK(run.control.signal() == 15);
    CHECK(run.control.reason() == std::string("interrupted"));

    Run early(kBoth, *ranks);  // a signal ends a validation, which stays pending
    early.signal = 2;
    CHECK(early.due(2) == "vc");
    CHECK(early.tasks.states().at(kValidationTask).pending);
    CHECK_FALSE(early.tasks.states().at(kSamplesTask).pending);

    Run at_end({.val_every = 3}, *ranks);  // also after the last step
    at_end.signal = 2;
    CHECK(at_end.due(4) == "vc");
    CHECK(at_end.tasks.states().at(kValidationTask).pending);

    Run failing(kBoth, *ranks);
    CHECK(do_what_is_due(failing, 0, {.failed = true}) == "");  // nothing has been trained
    CHECK(do_what_is_due(failing, 1, {.failed = true}) == "c");
    CHECK(failing.control.reason() == std::string("error"));

    Run late(kBoth, *ranks);  // HellaSwag ran out of time: samples and the checkpoint follow
    late.control.reach(false);
    late.tasks.reach(3, false);
    late.control.run_out_of_time();
    while (late.tasks.run_next()) {}
    CHECK(late.done == "vsc");
    CHECK(late.control.reason() == std::string("out of time (--max-minutes)"));

    const RunControl::Settings short_run{.max_minutes = kPassed};
    Run timed({.control = short_run, .val_every = 2}, *ranks);
    CHECK(do_what_is_due(timed, 1) == "vc");
    CHECK(timed.control.reason() == std::string("out of time (--max-minutes)"));
    Run scores({.control = short_run, .hellaswag_every = 2}, *ranks);
    CHECK(do_what_is_due(scores, 2) == "c");
    CHECK(scores.tasks.states().at(kHellaSwagTask).pending);
}

TEST_CASE("within a round a task waits for its end, but a requested checkpoint does not", "[run_control]") {
    const auto ranks = alone();
    Run run({.steps = 9, .val_every = 2, .checkpoint_every = 2}, *ranks);
    const auto due = [&](std::int64_t made, bool waits, const RankRequests& requests = {}) {
        run.done.clear();
        run.control.agree(requests);
        run.control.reach(false);
        run.tasks.reach(made, false, waits);
        while (run.tasks.run_next()) {}
        return run.done;
    };
    CHECK(due(2, true) == "");
    CHECK(due(3, true, {.save = true}) == "c");
    CHECK_FALSE(run.tasks.states().at(kCheckpointTask).pending);  // a resumed run has this one
    CHECK(due(5, false) == "vc");
    CHECK(due(7, false) == "");
    CHECK(due(8, true, {.failed = true}) == "c");
}

TEST_CASE("any rank's request applies to all ranks", "[run_control]") {
    std::vector<std::string> seen(3);
    std::vector<double> stopped(3);
    run_ranks(3, [&](Communicator& ranks) {
        const int rank = ranks.rank();
        Run run({.steps = 9}, ranks);
        const RunControl& control = run.control;
        const auto note = [&](std::int64_t step, const RankRequests& mine) {
            run.control.agree(mine);
            seen[std::size_t(rank)] += run.due(step) + (control.save_requested() ? "a" : "") +
                                       (control.failed() ? "f" : "") + std::to_string(control.signal()) + ' ';
        };
        note(1, {.save = rank == 1});
        note(2, {.signal = rank == 0 ? 10 : rank == 1 ? 15 : 0});
        note(3, {.failed = rank == 2});
        note(4, {.stopped = 5. * rank});
        stopped[std::size_t(rank)] = control.stopped();
    });
    for (const std::string& one : seen) CHECK(one == "c.a0 c15 cf0 .0 ");
    CHECK(stopped == std::vector<double>(3, 10));
}

TEST_CASE("a run whose length is a time has the same share on all ranks, and ends early enough", "[run_control]") {
    const Settings timed{.control = {.max_minutes = 1e6, .timed = true}, .val_every = 9};  // 6e7 s
    std::vector<double> first(3), second(3), late(3);
    run_ranks(3, [&](Communicator& ranks) {
        const auto rank = std::size_t(ranks.rank());
        RunControl control(timed.control, ranks);
        control.restore({.step = 5, .seconds = {.used = 1.5e7}});
        // 40e6 s for training; the slowest rank decides
        TaskStates tasks{{kValidationTask, {.seconds = 2e7 - 2 + double(rank)}}, {kCheckpointTask, {.seconds = 2}}};
        control.agree({.tasks = tasks});
        first[rank] = control.share();
        control.agree({.tasks = tasks});
        second[rank] = control.share();
        control.reach(false);
        CHECK_FALSE(control.ends());
        CHECK(control.run_seconds().used >= 1.5e7);
        tasks[kSamplesTask].seconds = 5e7;  // more than there is: half of the time is for training
        control.agree({.tasks = tasks});
        late[rank] = control.share();
    });
    for (std::size_t rank = 0; rank < 3; ++rank) {
        CHECK((first[rank] > 0.375 && first[rank] < 0.3750001));
        CHECK(first[rank] == first[0]);
        CHECK((second[rank] >= first[rank] && second[rank] == second[0]));
        CHECK((late[rank] > 0.5 && late[rank] < 0.5000001 && late[rank] == late[0]));
    }
    const auto ranks = alone();
    const auto resumed = [&](TrainerState state, double validation) {
        state.tasks[kValidationTask].seconds = validation;
        auto run = std::make_unique<Run>(timed, *ranks, &state);
        run->control.agree({.tasks = run->tasks.states()});
        return run;
    };
    // A validation before the first step, also of an earlier start, is not part of the training.
    RunControl fresh(timed.control, *ranks);
    fresh.restore({.seconds = {.used = 1e7}});
    fresh.training_begins();
    fresh.agree({.tasks = {{kValidationTask, {.seconds = 2e7}}}});
    CHECK((fresh.share() >= 0 && fresh.share() < 1e-7 && fresh.run_seconds().before_training >= 1e7));
    const auto later = resumed({.step = 5, .seconds = {.used = 2.5e7, .before_training = 1e7}}, 2e7);
    CHECK((later->control.share() > 0.5 && later->control.share() < 0.5000001));  // 1.5e7 s of 3e7 s
    // 4.5e7 s for training; another validation takes a third of them
    for (const double used : {2.9e7, 3.1e7})
        CHECK(resumed({.step = 8, .seconds = {.used = used}}, 1.5e7)->due(9) == (used < 3e7 ? "v." : "."));
    const auto none_left = resumed({.seconds = {.used = 6e7}}, 1);
    none_left->control.training_begins();
    none_left->control.agree({});
    CHECK(none_left->control.share() == 1);
    const auto over = resumed({.step = 5, .seconds = {.used = 5.5e7}}, 1e7);
    over->control.reach(false);
    CHECK((over->control.ends() && over->control.share() == 1 && over->control.run_seconds().used == 6e7));
    CHECK(over->control.reason() == std::string("out of time (--max-minutes)"));
}
