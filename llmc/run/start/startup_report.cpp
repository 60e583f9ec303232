// startup_report.cpp - build, device, libraries, options, data, model, steps and memory of a run, each reported once
#include "llmc/run/start/startup_report.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/device/control_groups.h"
#include "llmc/base/json_text.h"
#include "llmc/base/number_text.h"
#include "llmc/base/terminal.h"
#include "llmc/base/value_text.h"
#include "llmc/comm/communicator.h"
#include "llmc/model/outer_steps.h"
#include "llmc/run/log/report.h"
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
    const int ranks = context.world->size();
    const double quota = device::cpu_quota().cores;
    return {"device: " + device.name + ", " + counted(device.threads, "thread") + (ranks > 1 ? " per rank" : "") +
                (quota < double(sysconf(_SC_NPROCESSORS_ONLN)) ? format(", CPU quota %.3g", quota) : "") + '\n',
            {{"device", device.name}, {"threads", device.threads}, {"ranks", ranks}}};
}

std::string describe_dropped(const RunPlan& plan, const RunData& data) {
    const RunSettings& options = plan.settings;
    const DataLoader& loader = *data.batches.loader;
    std::string lines;
    if (const std::int64_t dropped = loader.dropped_per_epoch(); dropped > 0)
        lines = "  " + with_commas(dropped) + " of " + with_commas(loader.targets(), "target") +
                " per epoch are dropped: the last row of a\n  shard has fewer than --seq-len (--pad-last uses them)\n";
    const bool whole_epochs =
        !options.length.has_steps() && !options.length.is_timed() && !data.files.train->is_weighted();
    const std::int64_t more =
        whole_epochs ? loader.positions_in(options.length.passes()) - plan.positions_on_data() : 0;
    if (more > 0)
        lines += "  " + with_commas(more, "target") + " more at the end of the last epoch " +
                 (more == 1 ? "is" : "are") + " dropped:\n  too few for a step (--pad-last uses them)\n";
    return lines;
}

// Lines of the corpora that are drawn by weight.
std::string describe_corpora(const RunPlan& plan, const RunData& data) {
    std::string lines;
    std::int64_t sum = 0, shard = 0;
    for (const Corpus& corpus : data.files.train->corpora()) sum += corpus.weight;
    for (std::int64_t i = 0; sum > 0 && i < std::ssize(data.files.train->corpora()); ++i) {
        const Corpus& corpus = data.files.train->corpora()[std::size_t(i)];
        std::int64_t tokens = 0;
        for (const std::int64_t end = shard + corpus.shards; shard < end; ++shard)
            tokens += (*data.files.train)[shard].tokens();
        std::string epochs;
        if (plan.steps.total && data.batches.loader)
            epochs = format(", %.3g epochs", data.batches.loader->epochs_of_corpus(i, plan.positions_on_data()));
        lines += format("  %.4g %% ", 100 * double(corpus.weight) / double(sum)) + corpus.pattern + ": " +
                 counted(corpus.shards, "shard") + ", " + with_commas(tokens, "token") + epochs +
                 (sum == corpus.weight ? "; the weight of one pattern alone has no effect\n" : "\n");
    }
    return lines;
}

// A line for each validation set, if there are several.
std::string describe_sets(const RunData& data) {
    const ShardSet* const weighted = weights_of_validation(data.files);
    const bool as_trained = weighted && weighted == data.files.train.get();
    double sum = 0;
    for (const ValidationSet& set : data.batches.validation) sum += set.weight * double(set.batches.targets());
    std::string lines;
    for (std::size_t i = 0; data.batches.validation.size() > 1 && i < data.batches.validation.size(); ++i) {
        const auto& [pattern, weight, batches] = data.batches.validation[i];
        const std::int64_t taken = batches.taken(), all = batches.available();
        lines += format("  %.4g %% of the mean", 100 * weight * double(batches.targets()) / sum) +
                 (as_trained ? ", as " + weighted->corpora()[i].pattern : "") + ": " + pattern + ", " +
                 (taken < all ? with_commas(taken) + " of " : "") + with_commas(all, "target") + '\n';
    }
    return lines;
}

StartupItem data_item(const RunPlan& plan, const RunData& data) {
    std::string lines;
    Json fields = Json::object();
    if (data.files.train) lines += describe_shards("training data", *data.files.train);
    if (data.files.train) lines += describe_corpora(plan, data);
    if (data.batches.loader) lines += describe_dropped(plan, data);
    if (data.files.val) lines += describe_shards("validation data", *data.files.val);
    if (!data.batches.validation.empty()) {
        std::int64_t taken = 0, all = 0;
        for (const ValidationSet& set : data.batches.validation)
            taken += set.batches.taken(), all += set.batches.available();
        fields["validation_tokens"] = taken;
        fields["validation_tokens_available"] = all;
        const std::string part = (plan.settings.validation.spread ? "" : "the first ") + with_commas(taken) + " of ";
        lines += "  a validation reads " + (taken == all ? "all " : part) + with_commas(all, "target") +
                 (taken < all && plan.settings.validation.spread ? ", spread evenly (--val-tokens)\n" : "\n") +
                 describe_sets(data);
    }
    if (data.batches.hellaswag) {
        const auto examples = std::int64_t(data.batches.hellaswag->file().examples().size());
        fields["hellaswag_examples"] = examples;
        fields["hellaswag_fingerprint"] = data.batches.hellaswag->file().fingerprint();
        lines += "HellaSwag: " + with_commas(examples, "example") + '\n';
        if (const std::int64_t cut = data.batches.hellaswag->truncated_contexts(); cut > 0)
            lines += "  contexts truncated at their start to fit --seq-len: " + with_commas(cut) + '\n';
    }
    return {lines, fields};
}

StartupItem documents_item(const RunPlan& plan) {
    Json fields{{"document_mask", plan.setup.end_of_text.has_value()}};
    if (!plan.documents) return {"", fields};
    const PackedDocuments& of = *plan.documents;
    const double per_row = double(of.parts) / double(of.rows);
    fields.update({{"documents_per_row", per_row}, {"longest_document", of.longest}, {"pair_share", of.pair_share()}});
    return {format("documents: attention within them, %.3g %% of a row's pairs of tokens%s\n",
                   100 * of.pair_share(), plan.peak_flops ? ", which MFU counts" : "") +
                format("  %.3g in a row of the first shard, of at most ", per_row) + counted(of.longest, "token") +
                "; losses without --document-mask are not comparable\n",
            fields};
}

StartupItem model_item(const RunPlan& plan) {
    const ModelConfig& config = plan.setup.config;
    const auto decayed = plan.table.decayed(), not_decayed = plan.table.not_decayed();
    const std::int64_t padding = plan.table.padding(), parameters = plan.table.parameters() - padding;
    const auto count = [](const ParameterTable::Count& tensors, std::int64_t elements) {
        return with_commas(elements) + " in " + std::to_string(tensors.tensors) + " tensors";
    };
    const std::string details = "  " + count(decayed, decayed.elements - padding) + " with weight decay, " +
                                count(not_decayed, not_decayed.elements) + " without" +
                                (padding > 0 ? ", and " + with_commas(padding) + " of padding" : "") + '\n';
    const std::string head = plan.setup.fp8 == Fp8::off
                                 ? ""
                                 : "  --fp8 " + name_of(plan.setup.fp8, kFp8s) +
                                       ": the head is trained with 8-bit floats, validated in bf16\n";
    return {"model: " + describe(config) + "\n  " + with_commas(parameters) + " parameters\n" + head,
            {{"model", {{"name", plan.settings.model.init}, {"layers", config.layers}, {"heads", config.heads},
                        {"channels", config.channels}, {"positions", config.max_seq_len},
                        {"vocabulary", config.vocabulary}}},
             {"parameters", parameters}, {"padding_parameters", padding}},
            details};
}

// The options that differ from their defaults; with --dry-run also the others.
StartupItem options_item(const RunSettings& options) {
    const std::vector<std::string> changed = flags_of(options, true);
    std::string lines = changed.empty() ? "" : wrapped("options:", changed);
    if (options.dry_run.plans) lines += wrapped("defaults:", flags_of(options, false));
    return {"", {{"options", to_json(options)}}, lines};
}

StartupItem training_item(const RunPlan& plan) {
    const std::string noise = name_of(plan.noise.small_batches);
    const StepSize size = plan.steps.at(plan.first_step + 1);
    const bool timed = plan.settings.length.is_timed();
    std::string lines;
    if (plan.setup.training)
        lines += "training: " +
                 (timed ? minutes_text(plan.settings.length.minutes) + ", " : "") +
                 (plan.steps.total ? with_commas(*plan.steps.total, "step") : "steps") +
                 " of " + with_commas(size.positions, "token") +
                 ", micro-batches per step: " + std::to_string(size.micro_batches) + '\n';
    Json sizes = Json::array();
    for (const BatchChange& change : plan.steps.changes()) {
        sizes.push_back({{"from_step", change.step + 1}, {"tokens", change.tokens}});
        if (change.step <= plan.first_step) continue;
        const StepSize later = plan.steps.at(change.step + 1);
        lines += "  from step " + with_commas(later.number) + " (" + with_commas(later.positions_before, "token") +
                 ") of " + with_commas(later.positions, "token") + ", micro-batches: " +
                 std::to_string(later.micro_batches) +
                 format(", learning rate * %.4g\n", std::pow(later.relative, plan.schedule.batch_exponent));
    }
    const OptimizerReport outer = report_outer_steps(plan.optimizer_run());
    lines += outer.lines;
    std::string details = outer.details;
    if (plan.measures_noise())
        lines += "noise: sequences in a batch whose gradient is half noise; ~ early, > at least\n";
    Json fields = {{"total_steps", plan.steps.total.value_or(0)}, {"tokens_per_step", size.positions},
                   {"batch_sizes", sizes},
                   {"noise_scale", plan.measures_noise() ? Json(noise) : Json()}};
    if (timed) fields.erase("total_steps");
    return {lines, fields, plan.noise.note.empty() ? details : details + plan.noise.note + '\n'};
}

}  // namespace

StartupItem::StartupItem(std::string lines, const nlohmann::ordered_json& fields, std::string details)
    : lines(std::move(lines)),
      details(std::move(details)),
      fields(std::make_shared<const nlohmann::ordered_json>(fields)) {}

std::vector<StartupItem> startup_items(const RunPlan& plan, const RunData& data, const MemoryPlan& memory,
                                       Context& context) {
    const RunSettings& options = plan.settings;
    const std::int64_t ranks = options.dry_run.ranks;
    const std::string communication = ranks > 0 ? "not started: a plan for " + counted(ranks, "rank")
                                                        : context.world->describe(),
                      matmul = context.matmul.describe(plan.setup.dtype);
    const kernels::AttentionPlan& attention = attention_plan(plan.setup, context);
    const auto item = [](bool always, const std::string& line, const Json& fields) {
        return StartupItem(always ? line + '\n' : "", fields, always ? "" : line + '\n');
    };
    return {version_item(),
            device_item(context),
            item(context.world->size() > 1, "communication: " + communication,
                 {{"communication", communication}}),
            item(false, "matrix library: " + matmul, {{"matmul", matmul}}),
            item(!device::memory_is_host_memory(), "attention: " + attention.text,  // CPUs have no choice
                 {{"attention", attention.text}, {"deterministic", attention.deterministic}}),
            options_item(options),
            data_item(plan, data),
            documents_item(plan),
            model_item(plan),
            training_item(plan),
            optimizer_item(plan.optimizer.kind->report(plan.optimizer_run())),
            {memory.summary(), {{"planned_bytes", memory.total()}}, memory.text()}};
}

StartupItem optimizer_item(const OptimizerReport& report) {
    return {report.lines, Json(*report.fields)};
}

StartupItem tuning_item(const Tuning& tuning) {
    std::string lines = tuning.describe();
    if (!lines.empty()) lines += '\n';
    return {lines, {{"choices", tuning.fields()}}};
}

std::string terminal_text(const std::vector<StartupItem>& items, const RunSettings& options) {
    std::string text;
    const bool in_detail = options.report.verbose || options.dry_run.plans;
    for (const StartupItem& item : items) text += item.lines + (in_detail ? item.details : "");
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
