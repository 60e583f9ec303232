// startup_report.cpp - build, device, libraries, options, data, model, steps and memory of a run, each reported once
#include "llmc/run/start/startup_report.h"

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "llmc/base/counted.h"
#include "llmc/base/terminal.h"
#include "llmc/base/value_text.h"
#include "llmc/comm/communicator.h"
#include "llmc/model/muon.h"
#include "llmc/run/log/report.h"
#include "llmc/run/start/onebit_report.h"
#include "llmc/run/start/version.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

std::string describe_shards(const char* what, const ShardSet& shards) {
    return std::string(what) + ": " + counted(shards.size(), "shard") + ", " + with_commas(shards.tokens(), "token") +
           ", vocabulary " + std::to_string(shards.vocabulary().size) + '\n';
}

StartupItem version_item() {
    const Json version = version_json();
    std::istringstream text(version_text(version));
    std::string program;
    text >> program;
    return {"", {{"version", version}}, wrapped(program, {std::istream_iterator<std::string>(text), {}})};
}

StartupItem device_item(const Context& context) {
    const device::Info& device = context.device;
    const int ranks = context.communicator->size();
    return {"device: " + device.name + ", " + counted(device.threads, "thread") + (ranks > 1 ? " per rank" : "") + '\n',
            {{"device", device.name}, {"threads", device.threads}, {"ranks", ranks}}};
}

std::string describe_dropped(const DataLoader& loader, const Options& options) {
    std::string lines;
    if (const std::int64_t dropped = loader.dropped_per_epoch(); dropped > 0)
        lines = "  " + with_commas(dropped) + " of " + with_commas(loader.targets(), "target") +
                " per epoch are dropped: the last row of a\n  shard has fewer than --seq-len (--pad-last uses them)\n";
    const bool whole_epochs = !options.has_steps() && !options.is_timed();
    const std::int64_t more = whole_epochs ? loader.dropped_after(options.passes()) : 0;
    if (more > 0)
        lines += "  " + with_commas(more, "target") + " more at the end of the last epoch " +
                 (more == 1 ? "is" : "are") + " dropped:\n  too few for a step (--pad-last uses them)\n";
    return lines;
}

StartupItem data_item(const RunData& data, const Options& options) {
    std::string lines, details;
    Json fields = Json::object();
    if (data.train) lines += describe_shards("training data", *data.train);
    if (data.loader) lines += describe_dropped(*data.loader, options);
    if (data.val) lines += describe_shards("validation data", *data.val);
    if (data.validation && data.validation->uses_all_data())
        details = "validation uses all targets, fewer than --val-tokens: " + with_commas(data.validation->targets()) +
                  '\n';
    if (data.hellaswag) {
        const auto examples = std::int64_t(data.hellaswag->file().examples().size());
        fields["hellaswag_examples"] = examples;
        fields["hellaswag_fingerprint"] = data.hellaswag->file().fingerprint();
        lines += "HellaSwag: " + with_commas(examples, "example") + '\n';
        if (const std::int64_t cut = data.hellaswag->truncated_contexts(); cut > 0)
            lines += "  contexts truncated at their start to fit --seq-len: " + with_commas(cut) + '\n';
    }
    return {lines, fields, details};
}

StartupItem model_item(const RunPlan& plan, const Options& options) {
    const ModelConfig& config = plan.setup.config;
    const auto decayed = plan.table.decayed(), not_decayed = plan.table.not_decayed();
    const std::int64_t padding = plan.table.padding(), parameters = plan.table.parameters() - padding;
    const auto count = [](const ParameterTable::Count& tensors, std::int64_t elements) {
        return with_commas(elements) + " in " + std::to_string(tensors.tensors) + " tensors";
    };
    const std::string details = "  " + count(decayed, decayed.elements - padding) + " with weight decay, " +
                                count(not_decayed, not_decayed.elements) + " without" +
                                (padding > 0 ? ", and " + with_commas(padding) + " of padding" : "") + '\n';
    return {"model: " + describe(config) + "\n  " + with_commas(parameters) + " parameters\n",
            {{"model", {{"name", options.init}, {"layers", config.layers}, {"heads", config.heads},
                        {"channels", config.channels}, {"positions", config.max_seq_len},
                        {"vocabulary", config.vocabulary}}},
             {"parameters", parameters}, {"padding_parameters", padding}},
            details};
}

// The options that differ from their defaults; with --dry-run also the others.
StartupItem options_item(const Options& options) {
    const std::vector<std::string> changed = flags_of(options, true);
    std::string lines = changed.empty() ? "" : wrapped("options:", changed);
    if (options.dry_run) lines += wrapped("defaults:", flags_of(options, false));
    return {"", {{"options", to_json(options)}}, lines};
}

StartupItem training_item(const RunPlan& plan) {
    const std::string noise = name_of(plan.noise.small_batches);
    const bool timed = plan.control.timed;
    std::string lines;
    if (plan.setup.training)
        lines += "training: " +
                 (timed ? text_of_number(plan.control.max_minutes) + " minutes, steps"
                        : with_commas(plan.total_steps, "step")) +
                 " of " + with_commas(plan.step_tokens, "token") +
                 ", micro-batches per step: " + std::to_string(plan.micro_batches) + '\n';
    const Sharding& sharding = plan.setup.sharding;
    const double share = plan.optimizer.muon ? muon_share(plan.table, sharding.ranks, double(plan.step_tokens)) : 0;
    if (plan.optimizer.muon)
        lines += "Muon: orthogonalizing adds " + text_of_number(std::round(1000 * share) / 10) +
                 " % to the blocks' matrix products of a step\n";
    if (plan.measures_noise())
        lines += "noise: sequences at which noise equals signal; ~ few steps, > lower bound\n";
    Json fields = {{"total_steps", plan.total_steps}, {"tokens_per_step", plan.step_tokens},
                   {"noise_scale", plan.measures_noise() ? Json(noise) : Json()}};
    if (timed) fields.erase("total_steps");
    if (plan.optimizer.muon) fields["muon_share"] = share;
    return {lines, fields,
            plan.noise.note.empty() ? "" : plan.noise.note + '\n'};
}

}  // namespace

StartupItem::StartupItem(std::string lines, const nlohmann::ordered_json& fields, std::string details)
    : lines(std::move(lines)),
      details(std::move(details)),
      fields(std::make_shared<const nlohmann::ordered_json>(fields)) {}

std::vector<StartupItem> startup_items(const RunPlan& plan, const RunData& data, const MemoryPlan& memory,
                                       const Options& options, Context& context) {
    const std::string communication = context.communicator->describe(),
                      matmul = context.matmul.describe(plan.setup.dtype),
                      attention = context.attention.describe(attention_problem(plan.setup));
    const bool deterministic = context.attention.plan(attention_problem(plan.setup)).deterministic;
    const auto item = [](bool always, const std::string& line, const Json& fields) {
        return StartupItem(always ? line + '\n' : "", fields, always ? "" : line + '\n');
    };
    return {version_item(),
            device_item(context),
            item(context.communicator->size() > 1, "communication: " + communication,
                 {{"communication", communication}}),
            item(false, "matrix library: " + matmul, {{"matmul", matmul}}),
            item(!device::memory_is_host_memory(), "attention: " + attention,  // CPUs have no choice
                 {{"attention", attention}, {"deterministic", deterministic}}),
            options_item(options),
            data_item(data, options),
            model_item(plan, options),
            training_item(plan),
            exchange_item(plan, *context.communicator),
            {memory.summary(), {{"planned_bytes", memory.total()}}, memory.text()}};
}

StartupItem tuning_item(const Tuning& tuning, const RunPlan& plan, const Context& context) {
    std::string lines = tuning.describe();
    if (!lines.empty()) lines += '\n';
    Json fields = {{"choices", tuning.fields()}};
    if (!plan.setup.training || !kernels::Matmul::chooses_by_shape()) return {lines, fields};
    const auto sums = [&](bool accumulate) -> std::string {
        const auto pair = mlp_pair(plan.setup.config, int(plan.setup.shape.rows()), accumulate);
        return context.matmul.rounds_bias_gradient(plan.setup.dtype, pair) ? "bf16" : "fp32";
    };
    const std::string first = sums(false), later = sums(plan.micro_batches > 1);
    if (plan.setup.dtype == kernels::DType::bf16) {
        const auto words = [&](const std::string& type) {
            return "in " + type + (type == "bf16" ? " by " + context.matmul.library() + "'s epilogue" : "");
        };
        lines += "bias gradient of the MLP's first layer: summed " + words(first) +
                 (first == later ? "" : ", of later micro-batches " + words(later)) + '\n';
    }
    fields["fc_bias_gradient"] = first == later ? Json(first) : Json{first, later};
    return {lines, fields};
}

std::string terminal_text(const std::vector<StartupItem>& items, const Options& options) {
    std::string text;
    for (const StartupItem& item : items) text += item.lines + (options.verbose || options.dry_run ? item.details : "");
    return text;
}

nlohmann::ordered_json start_event(const std::vector<StartupItem>& items) {
    // These two come before the other fields, whatever the order of the items.
    Json event = {{"event", "start"}, {"log_version", kLogVersion}, {"time", utc_text()}, {"host", host_name()},
                  {"version", nullptr}, {"options", nullptr}};
    for (const StartupItem& item : items)
        if (item.fields)
            for (const auto& [name, value] : item.fields->items()) event[name] = value;
    return event;
}

}  // namespace llmc
