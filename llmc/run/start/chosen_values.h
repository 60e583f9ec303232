// chosen_values.h - gives every flag that is auto a value (choice.h), from the data and the speed of this machine, and
// says why
#pragma once
#include <optional>

#include "llmc/run/start/choice.h"
#include "llmc/run/start/run_plan.h"
#include "llmc/run/start/startup_report.h"

namespace llmc {

// Sets what is auto in `settings`. `start`: the model of --init; null: that is auto. Collective; throws SharedError for
// a budget or a text for which nothing can be chosen. Measures the speed only if a value depends on it, or for a plan.
struct ChosenValues {
    Facts facts;
    std::optional<Chosen> chosen{};  // empty: an evaluation, or a run that resumes
};
ChosenValues choose_values(RunSettings& settings, const RunFiles& files, const StartingPoint* start, bool resumes,
                           Tuning& tuning, Context& context);

StartupItem chosen_item(const ChosenValues& values);

// For --dry-run: speed, length, time, money, disk and links. "" for an evaluation.
std::string figures_text(const RunPlan& plan, const RunData& data, const Speed& speed);

}  // namespace llmc
