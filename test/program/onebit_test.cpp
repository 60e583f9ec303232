// onebit_test.cpp - whole runs with 1-bit Adam: output, bytes sent, and the checkpoints that they resume from
#include <cmath>

#include "kernels/grad_norm.h"
#include "llmc/weights/parameters.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

// Twelve steps of 192 positions; the second moment is frozen after four.
Result run_onebit(const TrainingFolder& folder, int ranks, const std::string& out, const Texts& more = {}) {
    return folder.run_on(ranks, folder.flags(
        Texts{"-e", "custom:l=2,h=2,c=64,t=16", "-b", "1", "-d", "192", "-x", "12", "-v", "6", "--val-tokens", "64",
              "--tune=off", "--optimizer", "onebit-adam", "--onebit-freeze-step", "4", "-o", folder.path(out)} + more));
}

}  // namespace

TEST_CASE("a run with 1-bit Adam learns, sends 1/32 of the bytes, and logs its stage", "[run][onebit][mpi]") {
    const int ranks = GENERATE(2, 4);
    const TrainingFolder folder;
    const std::string output = run_onebit(folder, ranks, "onebit", {"-x", "24"}).exits(0);
    const auto steps = folder.log("onebit", "step");
    REQUIRE(steps.size() == 24);
    const double full = steps[0]["bytes_sent"], compressed = steps[4]["bytes_sent"];
    const llmc::ParameterTable table({.layers = 2, .heads = 2, .channels = 64, .max_seq_len = 16, .vocabulary = 257});
    // An all-reduce sends this fraction of its buffer twice; a row of sums goes to each other rank.
    const double share = double(ranks - 1) / ranks, elements = double(table.elements());
    const double sums = double(sizeof(kernels::RankSums)) * (ranks - 1);
    CHECK(full == Approx(2 * share * 4 * elements + sums).epsilon(1e-3));
    // 1 bit per element, a reduce-scattered sketch, and for each of three buckets messages of a multiple of 128 bytes
    // with their scales.
    const double sketch = share * 4 * 16384;
    CHECK(compressed >= 2 * share * elements / 8 + sketch + sums);
    CHECK(compressed <= 2 * share * elements / 8 + sketch + sums + 3 * 2 * (ranks - 1) * (128 + 16 + 16));
    for (std::size_t i = 0; i < steps.size(); ++i) {
        CHECK(steps[i]["stage"] == (i < 4 ? "warm-up" : "compressed"));
        CHECK(steps[i].contains("largest_update") == (i >= 4));
        CHECK(steps[i]["noise_state"].is_string());
        if (i >= 4) CHECK((steps[i]["largest_update"] > 0.0 && steps[i]["largest_update"] < 0.1));
    }
    const auto stages = folder.log("onebit", "stage");
    REQUIRE(stages.size() == 1);
    CHECK((stages[0]["step"] == 4 && stages[0]["stage"] == "compressed"));
    CHECK_THAT(output, Contains("step 4/24  | the second moment is frozen; from now on ranks exchange"));
    const auto start = folder.log("onebit", "start")[0];
    const double milliseconds = start["compression_ms"];
    const auto& gigabits = start["compression_pays_below_gbit_s"];
    if (device::is_gpu() && milliseconds == 0)  // the times scatter by more than the small model's compression takes
        CHECK(gigabits.is_null());
    else
        CHECK((milliseconds > 0 && gigabits == Approx(2 * share * elements * 31 / milliseconds / 1e6).epsilon(1e-6)));
    CHECK_THAT(output, Contains("1-bit exchange: on this machine compression adds "));
    CHECK_THAT(output, Contains("1-bit exchange: after 4 updates a rank sends ") &&
                       Contains(" of momentum per step; AdamW's gradients would be "));
    const auto validation = numbers(folder.log("onebit", "val"), "loss");
    CHECK(validation.back() < validation.front() - 0.3);
    CHECK(std::isfinite(validation.back()));
}

TEST_CASE("--onebit-hierarchical on one machine freezes, and says that it compresses nothing", "[run][onebit][mpi]") {
    const TrainingFolder folder;
    const std::string output = run_onebit(folder, 2, "one", {"--onebit-hierarchical", "-x", "6"}).exits(0);
    CHECK_THAT(output,
               Contains("1-bit exchange: none, because all ranks are on one machine (--onebit-hierarchical)"));
    run_onebit(folder, 2, "frozen", {"--onebit-bits", "32", "-x", "6"}).exits(0);
    CHECK(folder.log("one", "step").back()["stage"] == "frozen");
    CHECK(folder.losses("one") == folder.losses("frozen"));
}

TEST_CASE("a checkpoint of 1-bit Adam is not resumed with other options", "[run][onebit][resume][mpi]") {
    const TrainingFolder folder;
    run_onebit(folder, 2, "whole", {"-x", "6", "--onebit-exclude", "ln_"}).exits(0);
    const auto attempt = [&](const std::string& out, const Texts& flags) {
        fs::copy(folder.path("whole"), folder.path(out), fs::copy_options::recursive);
        return run_onebit(folder, 2, out, Texts{"-y", "auto"} + flags);
    };
    CHECK_THAT(attempt("excluded", {"--onebit-exclude", "wpe"}).exits(2),
               Contains("--onebit-exclude is \"wpe\"; expected \"ln_\", as in the checkpoint, because the second "
                         "moments are frozen"));
    CHECK_THAT(attempt("later", {"--onebit-exclude", "ln_", "--onebit-freeze-step", "9"}).exits(2),
               Contains("--onebit-freeze-step is \"9\"; expected \"4\", because the second moment "
                                      "was frozen after 4 updates"));
    CHECK_THAT(attempt("scaled", {"--onebit-exclude", "ln_", "--onebit-space", "momentum"}).exits(0),
               Contains("note: optimizer state onebit: starts at 0, because the checkpoint's is "
                                       "for --onebit-"));
}

TEST_CASE("--onebit-freeze-step must lie after the checkpoint, or be the step at which auto froze",
          "[run][onebit][resume]") {
    const TrainingFolder folder;
    const auto go_on = [&](const Texts& more, const std::string& out = "refused") {
        return run_onebit(folder, 1, out,
                          Texts{"-x", "8", "-k", "constant", "-y", folder.path("whole/step_00000006")} + more);
    };
    run_onebit(folder, 1, "whole", {"-x", "6", "-k", "constant", "--onebit-freeze-step", "7"}).exits(0);
    const std::string late = go_on({"--onebit-freeze-step", "6"}).exits(2);
    CHECK_THAT(late, Contains("--onebit-freeze-step is 6; expected more than the 6 updates of the checkpoint"));
    const std::string other = go_on({"--onebit-freeze-step", "7", "-e", "custom:l=1,h=2,c=64,t=16"}).exits(2);
    CHECK_THAT(other, Contains("--init is \"custom:l=1,h=2,c=64,t=16\"; expected the model of the checkpoint") &&
                      Contains("use custom:l=2,h=2,c=64,t=16"));

    go_on({"--onebit-freeze-step", "7"}, "on").exits(0);

    // As if "auto" had frozen it.
    const fs::path state = folder.step("on", 8) / "trainer_state.json";
    auto json = nlohmann::json::parse(read_bytes(state));
    json["run"]["options"]["onebit-freeze-step"] = "auto";
    write_bytes(state, json.dump());
    make_checksums_right(state.parent_path());
    const auto again = [&](const char* number) {
        return run_onebit(folder, 1, std::string("again") + number,
                          {"-x", "9", "-k", "constant", "-y", state.parent_path(), "--onebit-freeze-step", number});
    };
    again("7").exits(0);
    again("8").exits(2);
}

TEST_CASE("a run that never compresses says why", "[run][onebit]") {
    const TrainingFolder folder;
    CHECK_THAT(run_onebit(folder, 1, "alone", {"-x", "5"}).exits(0),
               Contains("1-bit exchange: none, because one rank has nothing to send"));
    CHECK(folder.log("alone", "step")[4]["stage"] == "frozen");
    skip_without_mpi();
    CHECK_THAT(run_onebit(folder, 2, "early", {"-x", "4"}).exits(0),
               Contains("1-bit exchange: none, because the run ends after 4 steps, before 4 updates"));
    const std::string automatic = run_onebit(folder, 2, "auto",
                                             {"-x", "1000", "--onebit-freeze-step", "auto", "--dry-run"}).exits(0);
    CHECK_THAT(automatic, Contains("none, because the run ends after 1000 steps, and --onebit-freeze-step auto "
                                          "freezes after 1000 updates at the earliest; set it to 15 to 25 %"));
    const Result late = run_onebit(folder, 2, "late", {"-x", "1600", "-u", "1000", "--onebit-freeze-step", "auto",
                                                       "--dry-run"});
    CHECK_THAT(late.output, Contains("once the second moment has settled a rank sends "));
}

TEST_CASE("a run with 1-bit Adam prints excluded tensors and warns of an early freeze",
          "[run][onebit][mpi]") {
    const TrainingFolder folder;
    const std::string output = run_onebit(folder, 2, "dry", {"--dry-run", "-u", "5", "--onebit-exclude",
                                                            "transformer\\.h\\..\\.ln_|^ln_f"}).exits(0);
    CHECK_THAT(output, Contains("1-bit exchange: --onebit-exclude matches 10 of 28 tensors, 640 parameters, "
                                       "whose gradients stay uncompressed: h.0.ln_1.weight, h.0.ln_1.bias, "
                                       "h.0.ln_2.weight, ..."));
    CHECK_THAT(output, Contains("note: --onebit-freeze-step 4 is within the learning-rate warm-up") &&
                       Contains("use more than 10"));
    const std::string counted = run_onebit(folder, 2, "dry",
                                           {"--dry-run", "--onebit-exclude", "((w{1,200}){1,200})te"}).exits(2);
    CHECK_THAT(counted, Contains("expected no counts in braces"));
}

TEST_CASE("after the freeze a run prints the step times before and after it", "[run][onebit][mpi]") {
    const TrainingFolder folder;
    const std::string output = run_onebit(folder, 2, "onebit",
                                          {"-x", "44", "-v", "0", "--onebit-freeze-step", "22"}).exits(0);
    const auto ms = numbers(folder.log("onebit", "step"), "ms");
    const auto median = [&](int first) {
        std::vector<double> of(ms.begin() + first, ms.begin() + first + 20);
        std::ranges::sort(of);
        return of[10];
    };
    const auto speeds = folder.log("onebit", "stage_speed");
    REQUIRE(speeds.size() == 1);
    CHECK((speeds[0]["step"] == 43 && speeds[0]["stage"] == "compressed"));
    CHECK(speeds[0]["ms_before"] == median(2));
    CHECK(speeds[0]["ms"] == median(23));
    CHECK_THAT(output, Contains("step 43/44 | a compressed step takes ") &&
                           Contains(" ms, one of the phase before ") && Contains("(medians of up to 20 steps)\n") &&
                           Contains("2 ranks are on this machine, between which compression seldom pays\n"));
    // A shorter run has its verdict when it ends.
    CHECK_THAT(run_onebit(folder, 2, "short", {"-x", "9", "-v", "0", "--onebit-freeze-step", "4"}).exits(0),
               Contains(" (medians of up to 4 steps)\n"));
}
