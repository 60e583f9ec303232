// report_test.cpp - what a run tells of its steps, on the terminal and in the log
#include "llmc/run/report.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "llmc/base/json_text.h"
#include "test/support/scratch_folder.h"

using namespace llmc;
using namespace test;

namespace {

// What `work` prints.
template <class Work>
std::string printed(Work&& work) {
    const ScratchFolder folder;
    const auto path = folder.path() / "printed";
    std::fflush(stdout);
    const int before = dup(STDOUT_FILENO), file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(file, STDOUT_FILENO);
    close(file);
    work();
    std::fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    return read_bytes(path);
}

Report::Step step_of(double loss) {
    Report::Step step{.step = 11, .positions = 128, .tokens_so_far = 1536};
    step.scalars.loss = loss;
    step.scalars.learning_rate = 1e-3f;
    step.scalars.grad_norm = 0.5f;
    step.scalars.loss_z = step.scalars.norm_z = NAN;
    step.speed = {.ms = 20, .tokens_per_s = 6400, .valid_tokens_per_s = 6400, .mfu = 0.25};
    step.seconds_left = 3600;
    return step;
}

}  // namespace

TEST_CASE("a step is one line", "[report]") {
    const std::string line = printed([] { Report("", 100).step(step_of(2)); });
    CHECK(line == "step 12/100 | loss 2.0000 | lr 1.00e-03 | norm 0.5000 | 20.0 ms | 6.4k tok/s | MFU 25.0 % | "
                  "12.0 % | 1:00:00 left\n");
    CHECK(printed([] { Report("", 100, false).step(step_of(2)); }).empty());
}

TEST_CASE("a step's line is never cut, however long its numbers are", "[report]") {
    Report::Step step = step_of(1e300);
    step.scalars.grad_norm = 3e38f;
    step.speed.ms = 1e300;
    step.speed.tokens_per_s = 1e300;
    const std::string line = printed([&] { Report("", 100).step(step); });
    CHECK(line.size() > 600);
    CHECK_THAT(line, Catch::StartsWith("step 12/100 | loss ") && Catch::EndsWith(" | 1:00:00 left\n"));
}

TEST_CASE("a skipped step tells why", "[report]") {
    const auto reason = [](auto&& change) {
        Report::Step step = step_of(2);
        step.scalars.skip = kernels::kSkipOutlier;
        step.scalars.skipped_steps = 3;
        change(step.scalars);
        const std::string lines = printed([&] { Report("", 100).step(step); });
        const auto second = lines.find('\n') + 1;
        return lines.substr(second, lines.size() - second - 1);
    };
    using kernels::StepScalars;
    CHECK(reason([](StepScalars& x) { x.loss_z = 7.21, x.max_loss_z = 6, x.norm_z = 9; }) ==
          "step 12/100 | update skipped: loss is an outlier: z 7.21 > 6 (3 so far)");
    CHECK(reason([](StepScalars& x) { x.loss_z = 7, x.max_loss_z = 8, x.norm_z = 123, x.max_norm_z = 4.5; }) ==
          "step 12/100 | update skipped: gradient norm is an outlier: z 123 > 4.5 (3 so far)");
    CHECK(reason([](StepScalars& x) { x.loss_z = 7, x.max_loss_z = 6, x.norm_z = 5, x.max_norm_z = 4.5; }) ==
          "step 12/100 | update skipped: loss is an outlier: z 7 > 6, gradient norm is an outlier: z 5 > 4.5 "
          "(3 so far)");
    CHECK(reason([](StepScalars& x) { x.skip = kernels::kSkipNonFinite; }) ==
          "step 12/100 | update skipped: loss or gradient norm not finite (3 so far)");
    CHECK(reason([](StepScalars& x) { x.skip = kernels::kSkipNoTargets; }) ==
          "step 12/100 | update skipped: no targets (3 so far)");
}

TEST_CASE("the log holds one object a line, and null for what is unknown", "[report]") {
    const ScratchFolder folder;
    const std::string out = (folder.path() / "run").string();
    printed([&] {
        Report report(out, 100);
        report.start({{"event", "start"}});
        Report::Step step = step_of(NAN);
        step.speed.mfu.reset();
        step.bytes_sent = std::int64_t(1) << 40;
        report.step(step);
        report.sample(12, "caf\xe9");  // no UTF-8
        report.end(12, "all steps made", 1);
    });
    std::ifstream lines(out + "/log.jsonl");
    std::vector<nlohmann::json> events;
    for (std::string line; std::getline(lines, line);) events.push_back(llmc::parse_json(line));
    REQUIRE(events.size() == 4);
    CHECK(events[0]["event"] == "start");
    CHECK(events[1]["event"] == "step");
    for (const char* unknown : {"loss", "loss_z", "norm_z", "mfu", "comm_ms", "comm_hidden", "noise_scale_tokens"}) {
        CAPTURE(unknown);
        CHECK(events[1].at(unknown).is_null());
    }
    CHECK(events[1]["grad_norm"] == 0.5);
    CHECK(events[1]["bytes_sent"] == std::int64_t(1) << 40);
    CHECK(events[2]["text"] == "caf\xef\xbf\xbd");
    CHECK(events[3]["reason"] == "all steps made");
    CHECK_THROWS_AS(Report(out, 100), Error);  // another run's log
    CHECK_NOTHROW(Report(out, 100, false));    // not this rank's
}
