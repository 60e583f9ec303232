// outlier_test.cpp - outlier steps in whole runs: skipped on all ranks, also in resumed runs, and too many of them end
// the run
#include "test/support/run_support.h"

using namespace test;

namespace {

constexpr int kStepTokens = 64, kFirstOutlier = 150, kSecondOutlier = 165;

// Letters in alphabetical order, which a model soon learns, except in `size` steps starting with `first`: noise of
// bytes that it has not seen.
struct Noise {
    int first, size;
};
void write_shard(const TrainingFolder& folder, int steps, const std::vector<Noise>& noises) {
    std::vector<std::uint16_t> ids;
    std::mt19937 engine(2);
    for (int i = 0; i <= steps * kStepTokens; ++i) ids.push_back(std::uint16_t('a' + i % 20));
    for (const Noise& noise : noises)
        for (int i = 0; i < noise.size * kStepTokens; ++i)
            ids[std::size_t(noise.first * kStepTokens + i)] = std::uint16_t(128 + engine() % 100);
    ShardBytes(ids, 257, 256).write(folder.path("data.bin"));
}

Result train_on(const TrainingFolder& folder, int ranks, const std::string& out, const Texts& more) {
    return folder.run_on(ranks, folder.flags(Texts{"-i", folder.path("data.bin"), "-e", "custom:l=1,h=2,c=32,t=16",
                                                   "-b", "2", "-d", "64", "--lr", "3e-3", "-k", "constant", "-v", "0",
                                                   "--tune=off", "-o", folder.path(out)} + more));
}

// The log's steps after step `first`.
std::vector<nlohmann::json> steps_after(const TrainingFolder& folder, const std::string& out, int first) {
    std::vector<nlohmann::json> steps;
    for (const auto& step : folder.log(out, "step"))
        if (step["step"] > first) steps.push_back(without_times(step));
    return steps;
}

// The training state of a checkpoint, except the options.
std::string state_of(const TrainingFolder& folder, const std::string& out, const std::string& step) {
    std::string all;
    for (const std::string& name : names_in(folder.path(out + "/" + step)))
        if (name.ends_with(".safetensors")) all += read_bytes(folder.path(out + "/" + step + "/" + name));
    const auto json = llmc::parse_json(read_bytes(folder.path(out + "/" + step + "/trainer_state.json")));
    return all + llmc::text_of(json["optimizer"]);
}

}  // namespace

TEST_CASE("an outlier is skipped on all ranks, and a run resumed in the middle of its window is bit-identical",
          "[run][resume][ranks][mpi]") {
    const auto [ranks, exchange] = GENERATE(table<int, Texts>(
        {{1, {}}, {2, {"-z", "1", "--dtype", "bf16", "--stochastic-rounding"}}}));
    if (ranks > 1) skip_without_mpi();
    const TrainingFolder folder;
    write_shard(folder, 180, {{kFirstOutlier, 1}, {kSecondOutlier, 1}});
    const Texts flags = exchange + Texts{"-n", "80", "--skip-loss-z", "6", "--skip-norm-z", "50", "--noise-scale",
                                         "off"};
    CHECK_THAT(train_on(folder, ranks, "whole", flags).exits(0),
               Contains("step 151/180 | update skipped: loss is an outlier: z "));
    const auto steps = steps_after(folder, "whole", 0);
    const auto skips = numbers(folder.log("whole", "skip"), "step");
    REQUIRE(skips == std::vector<double>{kFirstOutlier + 1, kSecondOutlier + 1});
    for (const auto& skip : folder.log("whole", "skip")) {
        CHECK_THAT(skip["reason"].get<std::string>(), StartsWith("loss is an outlier: z ") && Contains(" > 6"));
        CHECK(steps[skip["step"].get<std::size_t>() - 1]["loss_z"] > 6);
    }
    for (std::size_t i = 0; i < 180; ++i)
        for (const char* const z : {"loss_z", "norm_z"}) CHECK(steps[i][z].is_null() == (i < 128));
    const auto state = llmc::parse_json(read_bytes(folder.path("whole/step_00000180/trainer_state.json")));
    CHECK(state["optimizer"]["updates"] == 178);
    CHECK(state["optimizer"]["losses"].size() == 128);
    for (const std::string from : {"080", "160"}) {  // before the window is full, and after a skipped step
        CAPTURE(ranks, from);
        CHECK_THAT(train_on(folder, ranks, from, flags + Texts{"-y", folder.path("whole/step_00000" + from)}).exits(0),
                   !Contains("changed:"));
        auto later = skips;
        std::erase_if(later, [&](double step) { return step <= std::stoi(from); });
        CHECK(numbers(folder.log(from, "skip"), "step") == later);
        CHECK(steps_after(folder, from, 0) == steps_after(folder, "whole", std::stoi(from)));
        CHECK(state_of(folder, from, "step_00000180") == state_of(folder, "whole", "step_00000180"));
    }
}

TEST_CASE("a run that makes no more updates ends, says so and saves its model", "[run]") {
    const TrainingFolder folder;
    write_shard(folder, 300, {{140, 160}});
    const auto start = [&](const Texts& more) { return train_on(folder, 1, "out", Texts{"--skip-loss-z"} + more); };
    const std::string stuck = start({"6"}).exits(1);
    CHECK_THAT(stuck, Contains("error: 128 steps in a row were skipped as outliers or not finite: "));
    const std::size_t skipped = folder.log("out", "skip").size();  // on a GPU the next step may have been enqueued
    CHECK((skipped == 128 || (device::is_gpu() && skipped == 129)));
    CHECK(folder.log("out", "end").back()["reason"] == "error");
    REQUIRE(fs::exists(folder.step("out", std::int64_t(140 + skipped)) / "manifest.json"));
    // With the same flags the run cannot resume, and nothing is written; with others it runs to the end.
    const std::string again = start({"6", "-y", "auto", "-n", "1", "--keep-checkpoints", "1"}).exits(2);
    CHECK_THAT(again, Contains("is " + std::to_string(skipped) +
                               "; expected fewer than 128; change or remove --skip-loss-z") &&
                      !Contains("step 269/"));
    CHECK(folder.log("out", "end").size() == 1);
    const std::string without = start({"0", "-y", "auto"}).exits(0);
    CHECK_THAT(without, Contains("changed: --skip-loss-z 6.0 -> 0.0"));
    CHECK(folder.log("out", "end").back()["reason"] == "all steps completed");
}
