// run_facts.cpp - build, device, libraries, options, data, model, steps and memory of a run, each said once
#include "llmc/run/run_facts.h"

#include <cstdio>

#include "llmc/base/json_text.h"
#include "llmc/run/onebit_facts.h"
#include "llmc/run/version.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

std::string describe_shards(const char* what, const ShardSet& shards) {
    return std::string(what) + ": " + std::to_string(shards.size()) + (shards.size() == 1 ? " shard, " : " shards, ") +
           std::to_string(shards.tokens()) + " tokens, vocabulary " + std::to_string(shards.vocabulary().size) + '\n';
}

RunFact device_fact(const Context& context) {
    const device::Info& device = context.device;
    const int ranks = context.communicator->size();
    return {"device: " + device.name + ", " + std::to_string(device.threads) +
                (device.threads == 1 ? " thread" : " threads") + (ranks > 1 ? " a rank" : "") + '\n',
            {{"device", device.name}, {"threads", device.threads}, {"ranks", ranks}}};
}

std::string describe_left_over(const DataLoader& loader, const Options& options) {
    std::string lines = "  " + std::to_string(loader.left_over()) + " of " + std::to_string(loader.targets()) +
                        " targets an epoch are left over\n";
    const std::int64_t more = options.max_steps > 0 ? 0 : loader.left_over_after(options.epochs);
    if (more > 0)
        lines += "  " + std::to_string(more) + " targets more at the end of the last epoch fill no step\n";
    return lines;
}

RunFact data_fact(const Plan& plan, const Options& options) {
    std::string lines;
    if (plan.data.train) lines += describe_shards("training data", *plan.data.train);
    if (plan.loader) lines += describe_left_over(*plan.loader, options);
    if (plan.data.val) lines += describe_shards("validation data", *plan.data.val);
    if (plan.validation && plan.validation->all_there_is())
        lines += "  all " + std::to_string(plan.validation->targets()) + " targets are used: fewer than --val-tokens\n";
    if (plan.hellaswag) {
        lines += "HellaSwag: " + std::to_string(plan.hellaswag->file().examples().size()) + " examples\n";
        if (const std::int64_t cut = plan.hellaswag->cut_contexts(); cut > 0)
            lines += "  " + std::to_string(cut) + " contexts lose tokens at their start to fit --seq-len\n";
    }
    return {lines, Json::object()};
}

RunFact model_fact(const Plan& plan) {
    const auto decayed = plan.table.decayed(), not_decayed = plan.table.not_decayed();
    const std::string model = describe(plan.start.config);
    return {"model: " + model + ", " + std::to_string(plan.table.parameters()) + " parameters (" +
                std::to_string(decayed.elements) + " decayed in " + std::to_string(decayed.tensors) + " tensors, " +
                std::to_string(not_decayed.elements) + " not in " + std::to_string(not_decayed.tensors) + ")\n",
            {{"model", model}, {"parameters", plan.table.parameters()}}};
}

RunFact training_fact(const Plan& plan) {
    const std::string noise = name_of(plan.noise.small_batches);
    std::string lines;
    if (plan.loader)
        lines += "training: " + std::to_string(plan.total_steps) + " steps of " + std::to_string(plan.step_tokens) +
                 " tokens, micro-batches in each: " + std::to_string(plan.micro_batches) +
                 (plan.measures_noise() ? ", noise scale by " + noise : "") + '\n';
    if (!plan.noise.note.empty()) lines += plan.noise.note + '\n';
    return {lines,
            {{"total_steps", plan.total_steps}, {"tokens_per_step", plan.step_tokens},
             {"noise_scale", plan.measures_noise() ? Json(noise) : Json()}}};
}

}  // namespace

std::vector<RunFact> facts_of_run(const Plan& plan, const Options& options, Context& context) {
    const Json version = version_json();
    const std::string communication = context.communicator->describe(),
                      matmul = context.matmul.describe(plan.setup.dtype),
                      attention = context.attention.describe(attention_problem(plan.setup));
    const bool deterministic = context.attention.plan(attention_problem(plan.setup)).deterministic;
    const nlohmann::json flags = to_json(options);
    return {{version_text(version), {{"version", version}}},
            device_fact(context),
            {"communication: " + communication + '\n', {{"communication", communication}}},
            {"matrix library: " + matmul + '\n', {{"matmul", matmul}}},
            {"attention: " + attention + '\n', {{"attention", attention}, {"deterministic", deterministic}}},
            {"options: " + text_of(flags) + '\n', {{"options", flags}}},
            data_fact(plan, options),
            model_fact(plan),
            training_fact(plan),
            fact_of_exchange(plan, *context.communicator),
            {plan.memory.text(), {{"planned_bytes", plan.memory.total()}}}};
}

RunFact fact_of_choices(const Tuning& tuning) {
    const std::string line = tuning.describe();
    return {line.empty() ? "" : line + '\n', {{"choices", tuning.fields()}}};
}

std::string terminal_text(const std::vector<RunFact>& facts) {
    std::string text;
    for (const RunFact& fact : facts) text += fact.lines;
    return text;
}

nlohmann::ordered_json start_event(const std::vector<RunFact>& facts) {
    // The log has what was asked for before what came of it: these two keep their places.
    Json event = {{"event", "start"}, {"version", nullptr}, {"options", nullptr}};
    for (const RunFact& fact : facts)
        for (const auto& [name, value] : fact.fields.items()) event[name] = value;
    return event;
}

}  // namespace llmc
