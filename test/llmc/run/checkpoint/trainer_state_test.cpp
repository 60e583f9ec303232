// trainer_state_test.cpp - the trainer state reads back bit-identical
#include "llmc/run/checkpoint/trainer_state.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "llmc/base/json_text.h"
#include "llmc/model/onebit_adam.h"
#include "llmc/run/checkpoint/checkpoint_writer.h"
#include "llmc/run/options/run_settings.h"
#include "llmc/run/start/resume.h"
#include "test/support/scratch_folder.h"
#include "test/support/support.h"

using namespace llmc;
using namespace test;

TEST_CASE("the trainer state reads back as it was written", "[trainer_state]") {
    const ScratchFolder scratch;
    const double third = 1.0 / 3, tiny = std::numeric_limits<double>::denorm_min(), large = 0x1.fffffffffffffp1023;
    TrainerState state{.step = std::int64_t(1) << 40,
                       .optimizer = {(std::int64_t(1) << 40) - 3, 3, tiny, {third, 0x1.0000000000001p1}, {-0.0, tiny},
                                     json_of({.frozen_after = 5, .moment_sum = third, .moment_sum_after = 4})},
                       .failed_in_a_row = 9, .without_update = 127, .batches = {{0, 524288}},
                       .noise = {{.count = 7, .signal = third, .noise = tiny, .product = -large},
                                 {.count = 1, .signal_squared = 0x1.0000000000001p-1000}},
                       .seconds = {.used = third, .before_training = 0.25},
                       .tasks = {{"validation", {.seconds = tiny}}, {"hellaswag", {.pending = true}},
                                 {"samples", {.seconds = 2}}, {"checkpoint", {.seconds = large}}},
                       .state_files = {{"optimizer", 8}, {"onebit", 4}},
                       .run = {.ranks = 8, .options = JsonValue(to_json(all_decided({.batch = {.seq_len = 32}}))),
                               .training_data = {{"a number of training shards of", "2"}, {"shard \xff", "\xfe"}},
                               .data_after = 7}};
    state.data = {.epoch = 3, .row = std::int64_t(1) << 50};
    write_trainer_state(scratch.path(), state);
    const TrainerState read = read_trainer_state(scratch.path());
    CHECK(read.step == state.step);
    CHECK(read.optimizer == state.optimizer);
    CHECK(same_bits(read.optimizer.norms, state.optimizer.norms));
    CHECK(read.failed_in_a_row == 9);
    CHECK(read.without_update == 127);
    CHECK(read.data == state.data);
    REQUIRE(read.noise.size() == 2);
    CHECK(read.noise[0].count == 7);
    CHECK(read.noise[0].signal == third);
    CHECK(read.noise[0].noise == tiny);
    CHECK(read.noise[0].product == -large);
    CHECK(read.noise[1].signal_squared == 0x1.0000000000001p-1000);
    CHECK(read.batches == std::vector<BatchChange>{{0, 524288}});
    CHECK(read.run.ranks == 8);
    CHECK((read.seconds.used == third && read.seconds.before_training == 0.25));
    CHECK(read.tasks == state.tasks);
    CHECK(read.state_files == state.state_files);
    CHECK(read.run.options == state.run.options);
    CHECK(read.run.training_data[0].value == "2");
    CHECK(read.run.data_after == 7);

    const auto file = scratch / "trainer_state.json";
    const std::string whole = read_bytes(file);
    const auto faults = [&](const std::string& text) {
        write_bytes(file, text);
        return error_of([&] { read_trainer_state(scratch.path()); });
    };
    const auto read_as = [&](const nlohmann::json& changed) {
        write_bytes(file, text_of(changed));
        return read_trainer_state(scratch.path());
    };
    CHECK_THAT(faults(""), Contains("trainer_state.json"));
    CHECK_THAT(faults("[]"), Contains("trainer_state.json is not a valid JSON object"));
    CHECK_THAT(faults("{}"), Contains("the format is none; expected 7, or 5 of version 0.3.0; resume with the version "
                                      "of this program that wrote it"));
    for (const char* const format : {"1", "6", "8", "5.5"})
        CHECK_THAT(faults("{\"format\": " + std::string(format) + "}"), Contains("that wrote it"));
    for (const char* const format : {"2", "4"})
        CHECK_THAT(faults("{\"format\": " + std::string(format) + "}"),
                   Contains("resume with version 0.3.0, which reads it, and then from its next checkpoint"));
    CHECK_THAT(faults(R"({"format": 7})"), Contains("not those that the run wrote") && Contains("step"));
    auto json = parse_json(whole);
    auto older = json;
    older["seconds"].erase("before_training");
    CHECK(read_as(older).seconds.before_training == 0);
    older["run"].erase("data_after");
    CHECK(read_as(older).run.data_after == 0);
    // A version that validated on the first tokens.
    older["run"]["options"].erase("val-spread");
    CHECK(read_as(older).run.options->at("val-spread") == false);
    older["seconds"]["before_training"] = 0.5;
    CHECK_THAT(faults(text_of(older)), Contains("seconds is -0.1666") && Contains("expected at least 0"));
    // The format of version 0.3.0: all steps have one size, and every task has a name of its own.
    older = json;
    older["format"] = 5;
    older.erase("batches");
    older["run"]["step_tokens"] = 524288;
    older["optimizer"].erase("second_surplus");
    for (const char* const later : {"workers", "health"}) older.erase(later);
    OptimizerCounts without_surplus = state.optimizer;
    without_surplus.second_surplus = 0;
    older.erase("tasks");
    older["validated"] = true, older["scored"] = false, older["sampled"] = true;
    older["seconds"].update({{"validation", tiny}, {"samples", 2}, {"checkpoint", large}});
    CHECK(read_as(older).batches == state.batches);
    CHECK(read_as(older).optimizer == without_surplus);
    CHECK(read_as(older).health == HealthState{});
    CHECK(read_as(older).tasks == state.tasks);
    older.erase("seconds");
    CHECK(read_as(older).seconds.used == 0);
    for (const auto& [format, name, wrong] :
         {std::tuple(5, "scored", "8"), {5, "seconds", "[]"}, {7, "tasks", "null"},
          {7, "tasks", R"({"samples": {"pending": 0, "seconds": 1}})"},
          {7, "tasks", R"({"samples": {"pending": true, "seconds": -1}})"}}) {
        auto other = format == 7 ? json : older;
        other[name] = parse_json(wrong);
        CHECK_THAT(faults(text_of(other)), Contains("trainer_state.json"));
    }
    // 1-bit Adam's own counts.
    for (const auto& [name, value] : std::vector<std::pair<const char*, nlohmann::json>>{
             {"frozen_after", -1}, {"frozen_after", (std::int64_t(1) << 40) - 2}, {"moment_sum", -1.0},
             {"moment_sum_after", -1}, {"frozen_after", 1.5}, {"moment_sum", "1"}, {"moment_sum", nullptr}}) {
        auto other = json["optimizer"]["own"];
        other[name] = value;
        CAPTURE(name, value);
        CHECK_THAT(error_of([&] { onebit_counts(JsonValue(other), state.optimizer.updates, "state.json"); }),
                   Contains("state.json: ") && Contains(name));
    }
    for (const auto& [name, value] : std::vector<std::pair<const char*, nlohmann::json>>{
             {"step", -1}, {"step", 1e300}, {"state_files", {{"optimizer", 0}}},
             {"state_files", {{"optimizer", 1}, {"onebit", 1.5}}}, {"state_files", {{"optimizer", "1"}}}, {"ranks", 0},
             {"failed_in_a_row", -1},
             {"without_update", 8}, {"options", nullptr}, {"options", {{"seq-len", 0}}},
             {"options", {{"seq-len", "auto"}}}, {"step", 1.5}, {"step", true}, {"ranks", (std::int64_t(1) << 32) + 1},
             {"batches", nlohmann::json::array()}, {"batches", {{{"step", 1}, {"tokens", 8}}}},
             {"batches", {{{"step", 0}, {"tokens", 0}}}}, {"batches", {{{"step", 0}, {"tokens", 48}}}},
             {"batches", {{{"step", 0}, {"tokens", 64}}, {{"step", 0}, {"tokens", 32}}}},
             {"batches", {{{"step", 0}, {"tokens", std::numeric_limits<std::uint64_t>::max()}}}},
             {"data", {{"epoch", 0}, {"row", 1e300}}}, {"data", {{"epoch", 0}, {"row", -1}}}}) {
        auto other = json;
        (json.contains(name) ? other : other["run"])[name] = value;
        CAPTURE(name, value);
        CHECK_THAT(faults(text_of(other)), Contains("trainer_state.json") && Contains(name));
    }
    auto uncounted = json;
    uncounted["optimizer"]["skipped_steps"] = 0;
    CHECK_THAT(faults(text_of(uncounted)), Contains("skipped_steps is 0; expected 3; restore the file"));
    for (const auto& [losses, says] : {std::pair(1, "the number of norms is 2; expected 1"),
                                       std::pair(129, "the number of losses is 129; expected at most 128")}) {
        auto other = json;
        other["optimizer"]["losses"] = std::vector<double>(std::size_t(losses), 3.0);
        CHECK_THAT(faults(text_of(other)), Contains("trainer_state.json") && Contains(says));
    }
    json["run"]["ranks"] = "two";
    CHECK_THAT(faults(text_of(json)), Contains("trainer_state.json") && Contains("number"));
    CHECK(faults(whole) == "accepted");
    std::filesystem::remove(file);
    CHECK_THAT(error_of([&] { read_trainer_state(scratch.path()); }), Contains("without trainer_state.json"));
}

TEST_CASE("what was measured on other data starts again", "[trainer_state]") {
    const bool data = GENERATE(false, true), validation = GENERATE(false, true);
    CAPTURE(data, validation);
    const OptimizerCounts counts{.updates = 1, .losses = {1}, .norms = {1}};
    TrainerState state{.optimizer = counts, .workers = {counts}, .without_update = 2, .noise = {{.count = 3}},
                       .health = {.lowest_after = 2, .high_steps = 3, .best_validation_after = 5,
                                  .validations_since_best = 6, .worse_validations = 7, .losses = 9,
                                  .has_mean_at_best = true}};
    forget_other_data(state, {.data = data, .validation = validation});
    const HealthState& health = state.health;
    for (const bool again : {health.lowest_after < 0, health.high_steps == 0, health.losses == 0,
                             state.without_update == 0, state.noise.at(0).count == 0, state.optimizer.losses.empty(),
                             state.optimizer.norms.empty(), state.workers[0].losses.empty()})
        CHECK(again == data);
    for (const bool again : {health.validations_since_best == 0, health.worse_validations == 0,
                             !health.has_mean_at_best})
        CHECK(again == (data || validation));
    CHECK((health.best_validation_after < 0) == validation);
    CHECK(state.optimizer.updates == 1);
}
