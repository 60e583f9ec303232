// report_test.cpp - the lines on the terminal and the events in the log
#include "llmc/run/log/report.h"

#include <cmath>

#include "test/support/run_support.h"

using namespace llmc;
using namespace test;

namespace {

// The output of `work`.
template <class Work>
std::string printed(Work&& work) {
    return written_to(STDOUT_FILENO, work);
}

Report::Step step_of(double loss) {
    Report::Step step{.size = {.number = 12, .positions = 128, .positions_before = 1408}};
    step.scalars.loss = loss;
    step.scalars.learning_rate = 1e-3f;
    step.scalars.grad_norm = 0.5f;
    step.scalars.loss_z = step.scalars.norm_z = NAN;
    step.speed = {.ms = 20, .tokens_per_s = 6400, .valid_tokens_per_s = 6400, .mfu = 0.25};
    step.seconds_left = 3600;
    return step;
}

}  // namespace

TEST_CASE("steps and validations are rows of one table", "[report]") {
    const std::string table = printed([] {
        Report report("", 3045);
        report.validation(0, 5.61157, 215408, 4.4, {});
        report.validation(0, 5.61157, 215408, 4.4, 8.09034);
        report.step(step_of(2));
        report.checkpoint(12, "out/step_00000012", 0);
        report.validation(12, 5.5, 215408, 4.4, {}, /*best=*/true);
    });
    CHECK(table == "step 0/3045    | validation   5.6116\n"
                   "step 0/3045    | validation   5.6116 | 8.0903 bits per byte\n"
                   "step           |    loss       lr   norm ms/step tok/s   left\n"
                   "step 12/3045   |  2.0000 1.00e-03  0.500    20.0 6.40k   1h00\n"
                   "step 12/3045   | saved out/step_00000012\n"
                   "step 12/3045   | validation   5.5000 | best\n");
    CHECK(printed([] { Report("", 100, false).step(step_of(2)); }).empty());
}

TEST_CASE("a validation reports the loss of each set, under the part of its pattern that differs", "[report]") {
    const ScratchFolder folder;
    const std::string out = (folder / "run").string();
    const auto lines = [&](const std::string& first, const std::string& second) {
        return printed([&] {
            Report report(out, 3045, true, /*appends=*/true);
            report.validation(12, 5.5, 1000, 4.4, {}, true, {{first, 5.25}, {second, NAN}});
        });
    };
    CHECK(lines("d/web_val_*.bin", "d/wiki_val_*.bin") == "step 12/3045   | validation   5.5000 | best\n"
                                                          "               |              5.2500 | web\n"
                                                          "               |                 nan | wiki\n");
    const auto event = parse_json(lines_of(read_bytes(out + "/log.jsonl")).at(0));
    CHECK(event["losses"].dump() == R"({"d/web_val_*.bin":5.25,"d/wiki_val_*.bin":null})");
    const auto names = [&](const std::string& first, const std::string& second) {
        const Texts printed = lines_of(lines(first, second));
        return printed[1].substr(printed[1].rfind("| ")) + ' ' + printed[2].substr(printed[2].rfind("| "));
    };
    CHECK(names("x/val_1.bin", "x/val_10.bin") == "| 1 | 10");
    CHECK(names("a/val.bin", "b/a/val.bin") == "| a | b/a");
    CHECK(names("val_.bin", "val_a.bin") == "| val_.bin | val_a.bin");  // "" would name the first
    CHECK(names("v_.bin", "v_v_.bin") == "| v_.bin | v_v_.bin");
}

TEST_CASE("a run ends with its tokens, and their rate within steps", "[report]") {
    const std::string text = printed([] {
        Report report("", 100);
        for (int i = 0; i < 20; ++i) report.step(step_of(2));
        report.end(20, "interrupted", 1);
    });
    CHECK_THAT(text, EndsWith("done: interrupted, 20 steps in 0:01, 2.56k tokens (6.40k tok/s)\n"));
}

TEST_CASE("NaN has no sign on the terminal", "[report]") {
    const std::string text = printed([] {
        Report report("", 3045);
        Report::Step step = step_of(std::copysign(NAN, -1));
        step.scalars.grad_norm = INFINITY;
        report.step(step);
        report.validation(12, std::copysign(NAN, -1), 100, 1, std::copysign(NAN, -1));
    });
    CHECK_THAT(text, Contains("|     nan 1.00e-03    inf ") && Contains("| nan bits per byte\n"));
    CHECK_THAT(text, !Contains("-nan"));
}

TEST_CASE("the table has only the columns that the run needs, and fits into 80 columns", "[report]") {
    Report::Step step = step_of(2);
    step.noise = Report::Noise{.estimate = {.state = NoiseScale::State::ok, .scale = 12300},
                               .sequences_per_token = 1e-3};
    const auto lines = [&](bool mfu, bool noise) {
        return printed([&] { Report("", 1000000, true, false, {.mfu = mfu, .noise = noise}).step(step); });
    };
    const std::string all = lines(true, true);
    CHECK_THAT(all, Contains(" tok/s   MFU   left  noise\n") && EndsWith(" 6.40k 25.0%   1h00   12.3\n"));
    CHECK(all.find('\n') == 80);
    CHECK(all.size() == 2 * all.find('\n') + 2);
    CHECK_THAT(lines(false, false), !Contains("MFU") && !Contains("noise") && !Contains("n/a"));
    const auto row_is_80_columns = [&] {  // 7 digits of steps; large and small values
        const std::string text = lines(true, true);
        CAPTURE(text);
        CHECK(text.size() == 2 * 81);
    };
    step.noise->estimate = {.state = NoiseScale::State::weak, .at_least = 4.56789e9};
    step.speed = {.ms = 123456.7, .tokens_per_s = 999.6e3, .valid_tokens_per_s = 1, .mfu = 0.5};
    step.seconds_left = 1e7;
    row_is_80_columns();
    step.speed.ms = 0.01, step.speed.tokens_per_s = 999.4, step.seconds_left = 59 * 60 + 59;
    row_is_80_columns();
    step.speed.tokens_per_s = 9.996e6, step.seconds_left = 24 * 3600;
    CHECK_THAT(lines(false, false), EndsWith(" 10.0M  1d00h\n"));
    step.speed.mfu.reset(), step.noise.reset(), step.seconds_left.reset();
    CHECK_THAT(lines(true, true), EndsWith("   n/a    n/a    n/a\n"));
}

TEST_CASE("the header is repeated after thirty rows, and after a sample", "[report]") {
    const auto headers = [](int rows, int sample_after) {
        const std::string text = printed([&] {
            Report report("", 100);
            for (int i = 0; i < rows; ++i) {
                report.step(step_of(2));
                if (i == sample_after) report.sample(12, "text");
            }
        });
        return Result{0, text}.count("ms/step");
    };
    CHECK(headers(30, -1) == 1);
    CHECK(headers(31, -1) == 2);
    CHECK(headers(30, 4) == 2);
}

TEST_CASE("--log-every reduces the lines of steps, and nothing else", "[report]") {
    const ScratchFolder folder;
    const std::string out = (folder / "run").string();
    const std::string text = printed([&] {
        Report report(out, 23, true, false, {.log_every = 10});
        Report::Step step = step_of(2);
        for (step.size.number = 4; step.size.number <= 23; ++step.size.number) {
            step.scalars.skip = step.size.number == 7 ? kernels::kSkipNoTargets : kernels::kNoSkip;
            report.step(step);
        }
        report.validation(21, 2, 100, 1, {});
    });
    // Other lines, and the end of a run that stops early, follow the line of the last step.
    const std::string cut = printed([&] {
        Report report("", 23, true, false, {.log_every = 10});
        Report::Step step = step_of(2);
        for (step.size.number = 1; step.size.number <= 5; ++step.size.number) report.step(step);
        report.validation(5, 2, 100, 1, {});
        for (; step.size.number <= 8; ++step.size.number) report.step(step);
        report.end(8, "interrupted", 1);
    });
    const auto steps_of = [](const std::string& printed) {
        Texts steps;
        for (const std::string& line : lines_of(printed))
            if (line.starts_with("step ") && line.find("loss") == line.npos)
                steps.push_back(line.substr(5, line.find('/') - 5));
        return steps;
    };
    CHECK(steps_of(cut) == Texts{"1", "5", "5", "8"});
    // the first, the skipped one, multiples of 10, the last, and the validation
    CHECK(steps_of(text) == Texts{"4", "7", "10", "20", "23", "21"});
    const std::string log = read_bytes(out + "/log.jsonl");
    CHECK(std::count(log.begin(), log.end(), '\n') == 20 + 1 + 1);
}

TEST_CASE("a run that saved its model prints how to resume or extend it", "[report]") {
    const auto last = [](std::int64_t saved, std::int64_t steps, const char* reason, const Texts& further = {}) {
        const std::string text = printed([&] {
            Report report("", 100, true, false, {.resume_command = "./train_gpt2 --resume=auto"});
            if (saved >= 0) report.checkpoint(saved, "out/step", 0);
            report.end(steps, reason, 1, {}, further);
        });
        return text.substr(text.rfind('\n', text.size() - 2) + 1);
    };
    CHECK(last(12, 12, "interrupted") == "to resume: ./train_gpt2 --resume=auto\n");
    CHECK(last(12, 12, "out of time (--max-minutes)") == "to resume: ./train_gpt2 --resume=auto\n");
    CHECK(last(10, 12, "interrupted") == "done: interrupted, 12 steps in 0:01\n");
    CHECK(last(-1, 12, "interrupted") == "done: interrupted, 12 steps in 0:01\n");
    CHECK(last(12, 12, "error") == "done: error, 12 steps in 0:01\n");
    CHECK(last(100, 100, "all steps completed", {"one way", "another"}) == "another\n");
    CHECK(last(-1, 100, "all steps completed", {"one way"}) == "done: all steps completed, 100 steps in 0:01\n");
    CHECK(last(100, 100, "error", {"one way"}) == "done: error, 100 steps in 0:01\n");
    const std::string timed = printed([&] {
        Report report("", {}, true, false, {.resume_command = "./train_gpt2 -y auto", .max_minutes = 1.5});
        report.step(step_of(2));
        report.checkpoint(12, "out/step", 0);
        report.end(12, "interrupted", 1);
        report.end(12, "out of time (--max-minutes)", 1, {}, {"one way"});
    });
    CHECK_THAT(timed, StartsWith("step        |    loss") && Contains("\nstep 12     |  2.0000 1.00e-03") &&
                          Contains("to resume: ./train_gpt2 -y auto\n") &&
                          EndsWith("one way\n"));
}

TEST_CASE("a skipped step reports the reason", "[report]") {
    const auto reason = [](auto&& change) {
        Report::Step step = step_of(2);
        step.scalars.skip = kernels::kSkipOutlier;
        step.scalars.skipped_steps = 3;
        change(step.scalars);
        const std::string lines = printed([&] { Report("", 100).step(step); });
        const auto third = lines.find('\n', lines.find('\n') + 1) + 1;  // after the header and the step
        return lines.substr(third, lines.size() - third - 1);
    };
    using kernels::StepScalars;
    CHECK(reason([](StepScalars& x) { x.loss_z = 7.21, x.max_loss_z = 6, x.norm_z = 9; }) ==
          "step 12/100  | update skipped: loss is an outlier: z 7.21 > 6 (3 so far)");
    CHECK(reason([](StepScalars& x) { x.loss_z = 7, x.max_loss_z = 8, x.norm_z = 123, x.max_norm_z = 4.5; }) ==
          "step 12/100  | update skipped: gradient norm is an outlier: z 123 > 4.5 (3 so far)");
    CHECK(reason([](StepScalars& x) { x.loss_z = 7, x.max_loss_z = 6, x.norm_z = 5, x.max_norm_z = 4.5; }) ==
          "step 12/100  | update skipped: loss is an outlier: z 7 > 6, gradient norm is an outlier: z 5 > 4.5 "
          "(3 so far)");
    CHECK(reason([](StepScalars& x) { x.skip = kernels::kSkipNonFinite; }) ==
          "step 12/100  | update skipped: loss or gradient norm not finite (3 so far)");
    CHECK(reason([](StepScalars& x) { x.skip = kernels::kSkipNoTargets; }) ==
          "step 12/100  | update skipped: no targets (3 so far)");
}

TEST_CASE("the log has one object per line, and null for unknown values", "[report]") {
    const ScratchFolder folder;
    const std::string out = (folder / "run").string();
    printed([&] {
        Report report(out, 100);
        report.start({{"event", "start"}});
        Report::Step step = step_of(NAN);
        step.speed.mfu.reset();
        step.bytes_sent = std::int64_t(1) << 40;
        step.parts = {.tasks = 1, .data = 2, .passes = 3, .optimizer = 4};
        report.step(step);
        report.sample(12, "caf\xe9");  // invalid UTF-8
        report.end(12, "all steps completed", 1);
    });
    std::vector<nlohmann::json> events;
    for (const std::string& line : lines_of(read_bytes(out + "/log.jsonl"))) events.push_back(parse_json(line));
    REQUIRE(events.size() == 4);
    CHECK(events[0]["event"] == "start");
    CHECK(events[1]["event"] == "step");
    CHECK(events[1]["step"] == 12);  // as on the terminal
    for (const auto& event : events)
        CHECK_THAT(event["time"].get<std::string>(),
                   Matches("20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]Z"));
    for (const char* unknown : {"loss", "loss_z", "norm_z"}) {
        CAPTURE(unknown);
        CHECK(events[1].at(unknown).is_null());
    }
    for (const char* never : {"mfu", "comm_ms", "comm_hidden", "noise_scale_tokens", "gpu",
                              "stage", "comm_wait_ms", "cpu_share"}) {
        CAPTURE(never);
        CHECK_FALSE(events[1].contains(never));
    }
    CHECK(events[1]["grad_norm"] == 0.5);
    CHECK(events[1]["bytes_sent"] == std::int64_t(1) << 40);
    CHECK((events[1]["tasks_ms"] == 1000 && events[1]["data_ms"] == 2000));
    if (device::is_gpu()) CHECK(events[1]["enqueue_ms"] == 7000);
    else CHECK((events[1]["forward_backward_ms"] == 3000 && events[1]["optimizer_ms"] == 4000));
    CHECK(events[2]["text"] == "caf\xef\xbf\xbd");
    CHECK((events[3]["reason"] == "all steps completed" && events[3]["tokens"] == 128));
    CHECK(events[3]["tokens_per_s"] == 6400);
    CHECK_THROWS_AS(Report(out, 100), Error);  // another run's log
    CHECK_NOTHROW(Report(out, 100, false));    // a rank that does not write
}

// test/dev/run_log_test.py reads the same table.
TEST_CASE("a resumed run refuses the lines of a log that dev/run_log.py refuses", "[report]") {
    const ScratchFolder folder;
    int rows = 0;
    for (const std::string& row : lines_of(read_bytes("test/support/log_lines.txt"))) {
        if (row[0] == '#') continue;
        std::string line;
        for (std::size_t at = 1; at < row.size(); ++at) {
            if (row[at] != '<') {
                line += row[at];
                continue;
            }
            const std::size_t end = row.find('>', at), times = row[at + 3] == '*' ? std::stoul(row.substr(at + 4)) : 1;
            line.append(times, char(std::stoi(row.substr(at + 1, 2), nullptr, 16)));
            at = end;
        }
        CAPTURE(row);
        ++rows;
        write_bytes(folder / "log.jsonl", line + "\n{\"event\":\"news\"}\n");
        if (row[0] == '+') CHECK_NOTHROW(Report(folder.path(), 10, true, /*appends=*/true));
        else CHECK_THROWS_WITH(Report(folder.path(), 10, true, true), Contains("log.jsonl line 1 is "));
    }
    CHECK(rows > 40);
}
