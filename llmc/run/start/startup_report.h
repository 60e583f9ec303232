// startup_report.h - what a run reports before its first step. One list of items makes the lines on the terminal, which
// are all that --dry-run prints, and the log's start event
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "llmc/model/memory_plan.h"
#include "llmc/model/tuning.h"
#include "llmc/run/start/run_plan.h"

namespace llmc {

// Either part may be empty.
struct StartupItem {
    StartupItem() = default;
    explicit StartupItem(std::string lines) : lines(std::move(lines)) {}
    StartupItem(std::string lines, const nlohmann::ordered_json& fields, std::string details = {});

    std::string lines, details;                            // for the terminal, each with its newline; with --verbose
    std::shared_ptr<const nlohmann::ordered_json> fields;  // for the log: an object, or null
};
// In the order of the terminal.
std::vector<StartupItem> startup_items(const RunPlan& plan, const RunData& data, const MemoryPlan& memory,
                                       Context& context);
StartupItem optimizer_item(const OptimizerReport& report);
// Known once the model has been initialized: how many algorithms were timed.
StartupItem tuning_item(const Tuning& tuning);

// With the details for --verbose and --dry-run.
std::string terminal_text(const std::vector<StartupItem>& items, const RunSettings& options);
nlohmann::ordered_json start_event(const std::vector<StartupItem>& items);

}  // namespace llmc
