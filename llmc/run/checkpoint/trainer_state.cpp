// trainer_state.cpp - the state as JSON; numbers are written so that they parse to the same value
#include "llmc/run/checkpoint/trainer_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "llmc/base/file_status.h"
#include "llmc/base/json_text.h"
#include "llmc/base/input_file.h"
#include "llmc/base/output_file.h"

namespace llmc {

void to_json(nlohmann::json& json, const Fact& fact) { json = {{"name", fact.name}, {"value", fact.value}}; }
void from_json(const nlohmann::json& json, Fact& fact) {
    json.at("name").get_to(fact.name);
    json.at("value").get_to(fact.value);
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LoaderPosition, epoch, row)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NoiseAverages, count, signal, noise, signal_squared, noise_squared, product)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HealthState, lowest_loss, lowest_after, high_steps, best_validation,
                                   best_validation_after, validations_since_best, worse_validations, loss_sum, losses,
                                   mean_at_best, has_mean_at_best, validation_failed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RunSeconds, used, before_training)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TaskState, pending, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OptimizerCounts, updates, skipped_steps, second_surplus, losses, norms, own)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BatchChange, step, tokens)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RunIdentity, ranks, options, training_data, validation_data, hellaswag, data_after)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainerState, step, optimizer, workers, failed_in_a_row, without_update, data,
                                   batches, noise, health, seconds, tasks, state_files, run)

namespace {

constexpr int kStateFormat = 7, kOlderFormat = 5;  // of version 0.3.0
constexpr std::int64_t kMostSteps = std::int64_t(1) << 50, kMostRanks = 1 << 20;

// Throws if a number's type differs from `sample`: the JSON library would convert fractions and booleans to integers. A
// list in `sample` has one element, for all elements. Fields that `sample` lacks may be anything.
void require_kinds_of(const nlohmann::json& sample, const nlohmann::json& found, const std::string& where) {
    if (sample.is_object() && found.is_object())
        for (const auto& [name, value] : sample.items())
            if (found.contains(name)) require_kinds_of(value, found[name], where + ": " + name);
    if (sample.is_array() && !sample.empty() && found.is_array())
        for (const auto& element : found) require_kinds_of(sample[0], element, where);
    const bool whole = sample.is_number_integer();
    const bool same = whole ? found.is_number_integer() : !sample.is_number() || found.is_number();
    require(same, where, excerpt(found), whole ? "a whole number" : "a number", "restore the file from a copy");
}

// Throws if a number was converted to another value: 2^32 + 1 becomes 1 in an int.
void require_unchanged(const nlohmann::json& parsed, const nlohmann::json& found, const std::string& where) {
    if (!parsed.is_object())
        require(found == parsed, where, excerpt(found), "a number that fits its type, such as " + excerpt(parsed),
                "restore the file from a copy");
    else
        for (const auto& [name, value] : parsed.items()) require_unchanged(value, found.at(name), where + ": " + name);
}

}  // namespace

std::int64_t TrainerState::last_step_tokens() const {
    const std::int64_t last = std::max<std::int64_t>(step - 1, 0);
    return std::prev(std::ranges::upper_bound(batches, last, {}, &BatchChange::step))->tokens;
}

std::string counts_text(const OptimizerCounts& counts) { return text_of(nlohmann::json(counts)); }
OptimizerCounts counts_in(const std::string& text) { return parse_json(text).get<OptimizerCounts>(); }

FileFingerprint write_trainer_state(const std::filesystem::path& folder, const TrainerState& state) {
    nlohmann::json json = state;
    json["format"] = kStateFormat;
    return write_file(folder / kStateName, text_of(json, 2) + '\n');
}

TrainerState read_trainer_state(const std::filesystem::path& folder) {
    const std::filesystem::path file = folder / kStateName;
    require(is_present(file), "the checkpoint " + folder.string(), std::string("without ") + kStateName,
            "a checkpoint of this program", "start a new run from a model alone with --init");
    nlohmann::json json = parse_json(read_text(file.string(), "a checkpoint's state"));
    require(json.is_object(), file.string(), "not a valid JSON object", "the file as the run wrote it",
            "restore the file from a copy, or resume from another checkpoint");
    const nlohmann::json format = json.value("format", nlohmann::json());
    const bool older = format == kOlderFormat;
    require(format == kStateFormat || older, file.string() + ": the format",
            format.is_null() ? "none" : excerpt(format),
            std::to_string(kStateFormat) + ", or " + std::to_string(kOlderFormat) + " of version 0.3.0",
            format.is_number() && format >= 2 && format < kOlderFormat
                ? "resume with version 0.3.0, which reads it, and then from its next checkpoint"
                : "resume with the version of this program that wrote it");
    // Older checkpoints lack these.
    const auto object = [](nlohmann::json& in, const char* name) {
        const auto found = in.find(name);
        return found != in.end() && found->is_object() ? &*found : nullptr;
    };
    json.emplace("workers", nlohmann::json::array());
    json.emplace("health", HealthState{});
    json.emplace("seconds", RunSeconds{});
    if (nlohmann::json* const health = object(json, "health")) health->emplace("validations_since_best", 0);
    nlohmann::json* const seconds = object(json, "seconds");
    if (seconds) seconds->emplace("before_training", 0.0);
    nlohmann::json* const run = object(json, "run");
    if (run) run->emplace("data_after", 0);
    if (nlohmann::json* const options = run ? object(*run, "options") : nullptr) options->emplace("val-spread", false);
    if (older) {
        if (nlohmann::json* const optimizer = object(json, "optimizer")) (*optimizer)["second_surplus"] = 0.0;
        if (run) json["batches"] = {{{"step", 0}, {"tokens", run->value("step_tokens", nlohmann::json())}}};
        nlohmann::json tasks;
        for (const auto& [name, done] : {std::pair(kValidationTask, "validated"), {kHellaSwagTask, "scored"},
                                         {kSamplesTask, "sampled"}, {kCheckpointTask, ""}}) {
            const nlohmann::json was = json.value(done, nlohmann::json(true)), none = 0.0;
            tasks[name] = {{"pending", was.is_boolean() ? nlohmann::json(was == false) : was},
                           {"seconds", seconds ? seconds->value(name, none) : none}};
        }
        json["tasks"] = tasks;
    }
    TrainerState sample{.optimizer = {.losses = {0}, .norms = {0}},
                        .workers = {{.losses = {0}, .norms = {0}}},
                        .batches = {{}},
                        .noise = {{}},
                        .run = {.options = JsonValue(nlohmann::json{{"seq-len", 1}}),
                                .training_data = {{}}, .validation_data = {{}}, .hellaswag = {{}}}};
    if (json.contains("state_files") && json["state_files"].is_object())
        for (const auto& [name, files] : json["state_files"].items()) sample.state_files[name] = 0;
    if (json.contains("tasks") && json["tasks"].is_object())
        for (const auto& [name, task] : json["tasks"].items()) sample.tasks[name] = {};
    require_kinds_of(sample, json, file.string());
    TrainerState state;
    try {
        state = json.get<TrainerState>();
    } catch (const nlohmann::json::exception& error) {
        throw Error(file.string() + ": the contents are not those that the run wrote (" + error.what() +
                    "); restore the file from a copy, or resume from another checkpoint");
    }
    require_unchanged(state, json, file.string());
    const auto require_within = [&](const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
        require(value >= least && value <= most, file.string() + ": " + name, value,
                std::to_string(least) + (least < most ? " to " + std::to_string(most) : ""),
                "restore the file from a copy");
    };
    require_within("step", state.step, 0, kMostSteps);
    const auto check = [&](const std::string& of, const OptimizerCounts& counts) {
        require_within((of + "updates").c_str(), counts.updates, 0, state.step);
        require_within((of + "skipped_steps").c_str(), counts.skipped_steps, state.step - counts.updates,
                       state.step - counts.updates);
        const std::size_t held = counts.losses.size();
        require(held <= kernels::OutlierWindow::kSize, file.string() + ": " + of + "the number of losses", held,
                "at most 128", "restore the file from a copy");
        require(counts.norms.size() == held, file.string() + ": " + of + "the number of norms", counts.norms.size(),
                std::to_string(held) + ", the number of losses", "restore the file from a copy");
    };
    check("", state.optimizer);
    for (const OptimizerCounts& worker : state.workers) check("workers: ", worker);
    require_within("failed_in_a_row", state.failed_in_a_row, 0, state.step);
    require_within("data: epoch", state.data.epoch, 0, kMostSteps);
    require_within("data: row", state.data.row, 0, kMostSteps);
    require_within("without_update", state.without_update, state.failed_in_a_row, state.step);
    const auto require_seconds = [&](double seconds) {
        require(seconds >= 0, file.string() + ": seconds", seconds, "at least 0", "restore the file from a copy");
    };
    require_seconds(state.seconds.before_training);
    require_seconds(state.seconds.used - state.seconds.before_training);
    for (const auto& [name, task] : state.tasks) require_seconds(task.seconds);
    require(!state.batches.empty(), file.string() + ": batches", "empty", "the tokens of every step",
            "restore the file from a copy");
    std::int64_t next = 0;
    for (const BatchChange& change : state.batches) {
        require_within("batches: step", change.step, next, next == 0 ? 0 : kMostSteps);
        require_within("batches: tokens", change.tokens, 1, kMostSteps);
        next = change.step + 1;
    }
    require_within("ranks", state.run.ranks, 1, kMostRanks);
    require_within("run: data_after", state.run.data_after, 0, state.step);
    for (const auto& [name, files] : state.state_files)
        require_within(("state_files: " + name).c_str(), files, 1, kMostRanks);
    require(state.run.options->is_object(), file.string() + ": options", excerpt(*state.run.options),
            "a JSON object with the run's options");
    const std::int64_t seq_len = state.run.options->value("seq-len", std::int64_t(1));
    require_within("run: options: seq-len", seq_len, 1, kMostSteps);
    for (const BatchChange& change : state.batches)
        require(change.tokens % seq_len == 0, file.string() + ": batches: tokens", change.tokens,
                "a multiple of --seq-len " + std::to_string(seq_len), "restore the file from a copy");
    return state;
}

}  // namespace llmc
