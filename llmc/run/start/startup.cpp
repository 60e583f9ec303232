// planned_run.cpp - from the options to the first line of the log, in the order in which a user is told
#include "llmc/run/planned_run.h"

#include <cerrno>
#include <iostream>

#include "kernels/device/error.h"
#include "llmc/base/standard_streams.h"
#include "llmc/comm/agreement.h"
#include "llmc/run/checkpoint_writer.h"
#include "llmc/run/initial_model.h"
#include "llmc/run/onebit_facts.h"
#include "llmc/run/start_facts.h"

namespace llmc {
namespace {

MemoryPlan memory_of(const Plan& plan, const Options& options, const Context& context) {
    const bool copies = device::memory_is_host_memory() && plan.loader && !options.output_dir.empty();
    return plan_memory(plan.setup, plan.table, context, plan.reduce_in_bf16,
                       copies ? CheckpointWriter::copy_bytes(plan.table, plan.setup.sharding, plan.optimizer.onebit)
                              : 0,
                       plan.optimizer.onebit,
                       plan.sampler && context.communicator->rank() == 0
                           ? plan.sampler->bytes(plan.setup.config, plan.setup.dtype) : 0);
}

std::vector<std::string> notes_of(const Plan& plan, const Context& context) {
    std::vector<std::string> notes;
    const std::string& passed_over = context.attention.plan(attention_problem(plan.setup)).passed_over;
    if (!passed_over.empty()) notes.push_back("attention goes without cuDNN: " + passed_over);
    if (!plan.start.note.empty()) notes.push_back(plan.start.note);
    if (!plan.tokenizer_note.empty()) notes.push_back(plan.tokenizer_note);
    if (const auto& onebit = plan.optimizer.onebit; onebit && plan.frozen_after == 0 && onebit->freeze_after > 0 &&
                                                    onebit->freeze_after <= onebit->lr_warmup_steps)
        notes.push_back("--onebit-freeze-step " + std::to_string(onebit->freeze_after) +
                        " lies within the warm-up of the learning rate, where second moments are larger than later, "
                        "so that steps will be short: give more than " + std::to_string(2 * onebit->lr_warmup_steps));
    return notes;
}

void tell_notes(const std::vector<std::string>& notes) {
    for (const std::string& note : notes) tell_stderr("note: " + note);
}

void tell_choices(PlannedRun& run, const Context& context, bool first_rank) {
    run.facts.push_back(fact_of_choices(run.tuning, run.plan, context));
    if (!first_rank) return;
    tell_notes(run.tuning.notes());
    std::cout << run.facts.back().lines << std::flush;
}

// What to do to go on with this run when it was ended early. With several ranks mpirun's own flags are not known.
std::string way_on(const Options& options, int ranks) {
    Options again = options;
    again.resume = "auto";
    std::string flags;
    for (const std::string& flag : flags_of(again, true)) flags += ' ' + flag;
    if (ranks == 1) return program_invocation_name + flags;
    return "start the " + std::to_string(ranks) + " ranks again, with" + flags;
}

}  // namespace

PlannedRun plan_run(const Options& options, Context& context) {
    Communicator& ranks = *context.communicator;
    const bool first_rank = ranks.rank() == 0;
    Tuning tuning(options, context);
    Found found = find_resumption(options, ranks);
    const Resumption* const resumption = found.resumption ? &*found.resumption : nullptr;
    Plan plan = together(ranks, [&] { return make_plan(options, resumption, context); });
    if (options.onebit_hierarchical && plan.optimizer.onebit) {
        const std::vector<int> nodes = nodes_of(ranks);
        plan.optimizer.onebit->ranks_of_node = together(ranks, [&] { return ranks_of_node(nodes); });
    }
    for (const auto& facts : {plan.data.train_facts, plan.data.val_facts,
                              facts_of_hellaswag(plan.hellaswag ? &plan.hellaswag->file() : nullptr)})
        require_alike(ranks, facts, "give all ranks the same files");
    const bool appends = appends_to_log(options, resumption);
    on_first_rank(ranks, [&] {
        if (!appends) require_free_log(options.output_dir);
        if (!options.eval_only) require_free_names(found, options, plan.total_steps);
    });
    Changes changes;
    if (resumption) changes = together(ranks, [&] { return go_on(plan, options, *resumption); });
    tuning.choose([&] {  // before the memory plan, which needs to know what attention keeps
        context.attention.choose(attention_problem(plan.setup), context.stream);
        context.matmul.describe(plan.setup.dtype);
    });
    plan.memory = together(ranks, [&] { return memory_of(plan, options, context); });
    const std::vector<std::string> notes = notes_of(plan, context);
    if (first_rank) tell_notes(notes);
    std::vector<RunFact> facts = facts_of_run(plan, options, context);
    if (first_rank) std::cout << terminal_text(facts) << std::flush;
    try {
        together(ranks, [&] { require_room(plan.memory); });
    } catch (const Error& error) {
        if (!options.ignore_memory_plan) throw;
        if (first_rank) tell_stderr(std::string("note: goes on as --ignore-memory-plan says: ") + error.what());
    }
    PlannedRun run{std::move(tuning), std::move(found), std::move(plan), std::move(changes), std::move(facts), appends};
    if (options.dry_run) tell_choices(run, context, first_rank);
    return run;
}

std::unique_ptr<Model> make_initial_model(PlannedRun& run, const Options& options, Context& context) {
    auto model = make_model(run.plan.setup, run.plan.table, context);
    load_initial_weights(*model, run.plan, std::uint64_t(options.seed), *context.communicator);
    if (kernels::Matmul::chooses_by_shape()) run.tuning.choose([&] { choose_products(*model, run.plan, context); });
    run.tuning.save();
    return model;
}

Report begin_report(PlannedRun& run, const Options& options, Context& context) {
    Communicator& ranks = *context.communicator;
    const bool first_rank = ranks.rank() == 0;
    tell_choices(run, context, first_rank);
    run.facts.push_back(fact_of_compression(run.plan, context));
    if (first_rank) std::cout << run.facts.back().lines << std::flush;
    Report report = together(ranks, [&] {
        return Report(options.output_dir, run.plan.total_steps, first_rank, run.appends,
                      {.log_every = options.log_every, .mfu = run.plan.peak_flops.has_value(),
                       .noise = run.plan.measures_noise(), .way_on = way_on(options, ranks.size())});
    });
    on_first_rank(ranks, [&] { make_way(run.found, options); });
    if (options.output_dir.empty() && first_rank) std::cout << "no --output-dir: neither log nor model will be kept\n";
    if (options.log_gpu && !options.output_dir.empty() && first_rank) report.log_gpu(watch_gpu(context.device.id));
    report.start(start_event(run.facts));
    if (const Resumption* const resumption = run.resumption(); resumption || report.appended())
        report.resume(run.plan.first_step, resumption ? resumption->folder.string() : "", run.changes.options);
    return report;
}

}  // namespace llmc
