// train_gpt2.cu - pretrains GPT-2 from the shell: options -> plan -> model -> loop -> exit code. Host code in every
// build.
//
// Exit codes: 0 the run ended as asked, 1 it failed on the way, 2 it could not start, 128 + the signal's number (130
// for Ctrl-C) it was interrupted, and saved.
#include <iostream>

#include "kernels/device/range.h"
#include "llmc/base/standard_streams.h"
#include "llmc/base/waiting_threads.h"
#include "llmc/comm/agreement.h"
#include "llmc/run/checkpoint_writer.h"
#include "llmc/run/initial_model.h"
#include "llmc/run/interrupt.h"
#include "llmc/run/open_context.h"
#include "llmc/run/periodic.h"
#include "llmc/run/plan.h"
#include "llmc/run/run_facts.h"
#include "llmc/run/start_facts.h"
#include "llmc/run/step_batches.h"
#include "llmc/run/step_log.h"
#include "llmc/run/tuning.h"
#include "llmc/run/version.h"

using namespace llmc;

namespace {

// What a run trains and shows. Every rank has one and calls the same; rank 0 alone prints, samples and writes.
struct Training {
    const Options& options;
    Plan& plan;
    Context& context;
    Model& model;
    Report& report;
    Interrupt& interrupt;
    BatchUpload upload{plan.setup.shape, plan.start.config.vocabulary, context};

    // After `step` updates. Both end early on a signal, which they return, with nothing to report; 0: none came.
    // Data that a rank cannot read are `unreadable`, too, the same on every rank.
    int validate(std::int64_t step) {
        const device::Range range("validation");
        const ValidationLoss x = validation_loss(*plan.validation, model, upload, plan.setup.shape, context,
                                                 [&] { return interrupt.signal(); });
        unreadable = x.unreadable;
        if (x.signal == 0 && !unreadable) report.validation(step, x.loss, plan.validation->targets(), x.seconds);
        return x.signal;
    }
    int sample(std::int64_t step) {
        model.wait_for_parameters();
        const Samples x = draw_samples(*plan.sampler, model, *context.communicator, [&] { return interrupt.signal(); });
        on_first_rank(*context.communicator, [&] {
            for (const std::string& text : x.texts) report.sample(step, text);
        });
        return x.signal;
    }
    // Somebody asked for a checkpoint (SIGUSR2).
    void take_save_request() {
        interrupt.save_begins();
        if (context.communicator->rank() == 0 && options.output_dir.empty())
            std::cerr << "note: SIGUSR2: no --output-dir, so there is nowhere to save\n";
    }

    // Both return the exit code.
    int train(const Resumption* resumption);
    int evaluate();

    std::exception_ptr unreadable{};
};

int Training::train(const Resumption* resumption) {
    Communicator& ranks = *context.communicator;
    const MicroBatchShape shape = plan.setup.shape;
    const auto gradients = make_gradient_exchange(plan.table, {.sharding = plan.setup.sharding,
                                                               .small_batches = plan.noise.small_batches,
                                                               .reduce_in_bf16 = plan.reduce_in_bf16,
                                                               .may_stay_local = plan.optimizer.onebit.has_value()},
                                                  context);
    const auto optimizer_of_run = make_optimizer(model, *gradients, plan.optimizer, context);
    Optimizer& optimizer = *optimizer_of_run;
    if (resumption) load_moments(optimizer, resumption->folder, resumption->state, plan.table, ranks);
    optimizer.round_parameters(model);
    auto peak = peak_flops(context.device, plan.setup.dtype, options.tf32);
    if (peak) *peak *= ranks.size();
    Throughput throughput(flops_per_token(model.table(), shape.seq_len), peak);
    RunNoise noise(gradients->sums().module_names(), options.noise_scale_beta);
    StepLog step_log(optimizer, throughput, report, ranks, plan.total_steps, plan.measures_noise() ? &noise : nullptr,
                     shape.seq_len);
    StepBatches batches(*plan.loader, options.overfit_batch, shape.rows());
    if (resumption) {
        step_log.restore({resumption->state.failed_in_a_row, resumption->state.without_update});
        if (!resumption->state.noise.empty()) noise.restore(resumption->state.noise);
    }
    using First = Periodic::First;
    const auto periodic = [&](bool can, std::int64_t every, First first) {
        return Periodic(can ? every : 0, plan.total_steps, first);
    };
    const bool saves = !options.output_dir.empty();
    Periodic validation = periodic(plan.validation.has_value(), options.val_every, First::before_steps),
             samples = periodic(plan.sampler.has_value(), options.sample_every, First::after_a_step),
             checkpoint = periodic(saves, options.checkpoint_every, First::after_a_step);
    if (resumption) {
        validation.restore(plan.first_step, !resumption->state.validated);
        samples.restore(plan.first_step, !resumption->state.sampled);
        checkpoint.restore(plan.first_step, false);
    }
    CheckpointWriter checkpoints({.output_dir = options.output_dir, .sharding = plan.setup.sharding,
                                  .end_of_text = plan.data.vocabulary().end_of_text,
                                  .keep_checkpoints = options.keep_checkpoints, .major_every = options.major_every},
                                 model, optimizer, gradients->buckets(), context, report);
    const float token_weight = float(1.0 / double(plan.step_tokens));  // of one token in the gradient
    std::string reason = "all steps made";
    // Of data or log, or no updates any more: what has been trained so far is sound, and is saved.
    const auto failure = [&] {
        return unreadable ? unreadable : batches.failure() ? batches.failure()
               : report.failure() ? report.failure() : step_log.failure();
    };
    int signal = 0;
    const double began = seconds_now();
    double last_save = began;

    LoaderPosition next = plan.loader->position();  // of the batches of the next step
    std::int64_t step = plan.first_step, saved = resumption ? step : -1;
    bool failed = false;
    const auto passed = [](double minutes, double since) {
        return minutes > 0 && seconds_now() - since >= minutes * 60;
    };
    while (true) {
        // Between two updates: is this the end, and what is due?
        enum { kSignal, kOutOfTime, kFailed, kSaveByTime, kSaveAsked, kWriting };
        std::int64_t wishes[] = {interrupt.signal(), passed(options.max_minutes, began), failure() != nullptr,
                                 passed(options.checkpoint_minutes, last_save), interrupt.save_asked(),
                                 checkpoints.is_writing()};
        // What one rank must, all do, before the same step. It holds up no GPU, which has all of the step before to do:
        // MPI takes 5 us for 2 ranks on cores of their own, 160 us for 8 on 2 cores that others use too.
        ranks.host_reduce(wishes, HostReduction::max);
        signal = int(wishes[kSignal]);
        const bool out_of_time = wishes[kOutOfTime] != 0;
        failed = wishes[kFailed] != 0;
        if (out_of_time) reason = "out of time (--max-minutes)";
        bool last = failed || signal != 0 || out_of_time || step == plan.total_steps;
        if (wishes[kWriting] == 0) checkpoints.end(false);  // all ranks have written
        if (wishes[kSaveAsked] != 0) take_save_request();
        for (Periodic* const each : {&validation, &samples, &checkpoint}) each->reach(step);
        const bool save_due = wishes[kSaveByTime] != 0 || wishes[kSaveAsked] != 0 || checkpoint.due(last);
        if (validation.due(last) || samples.due(last) || save_due || last) step_log.flush();
        failed = failed || (last && step_log.failure());  // of the last step; all ranks have the same numbers
        if (!failed && signal == 0 && validation.due(last)) {
            signal = validate(step);
            if (unreadable) continue;  // on every rank: the run ends here
            if (signal == 0) validation.done();
        }
        if (!failed && signal == 0 && samples.due(last)) {
            signal = sample(step);
            if (signal == 0) samples.done();
        }
        last = last || signal != 0;
        if (saves && step != saved && (failed ? step > 0 : last || save_due)) {
            checkpoints.begin({.step = step, .optimizer = optimizer.counts(),
                               .failed_in_a_row = step_log.in_a_row().failed,
                               .without_update = step_log.in_a_row().without_update,
                               .validated = !validation.owed(), .sampled = !samples.owed(), .data = next,
                               .noise = noise.averages(), .run = plan.run});
            saved = step;
            last_save = seconds_now();
        }
        if (last) break;

        // One update: the gradients of all micro-batches add up, every token with the same weight.
        const device::Range step_range("step");
        const double step_began = seconds_now();
        Report::Step record{.step = step, .positions = plan.step_tokens,
                            .tokens_so_far = (step + 1) * plan.step_tokens};
        for (int micro_batch = 0; micro_batch < plan.micro_batches; ++micro_batch) {
            const device::Range micro_batch_range("micro-batch");
            const Batch& batch = batches.next(micro_batch);
            if (micro_batch == 0) record.epoch = batch.from.epoch;
            gradients->begin({.index = micro_batch, .count = plan.micro_batches, .valid_targets = batch.valid_targets});
            model.forward_backward(upload.upload(batch.inputs, batch.targets, shape, Purpose::training),
                                   token_weight, *gradients);
        }
        // Before anything is updated; as cheap as above, since the device still has these micro-batches to do.
        if (ranks.host_reduce(batches.failure() != nullptr, HostReduction::max) != 0) continue;
        const auto learning_rate = float(plan.schedule.learning_rate(step));
        optimizer.step(model, {.learning_rate = learning_rate, .positions = plan.step_tokens});
        step_log.enqueued(record, step_began);
        next = plan.loader->position();
        ++step;
    }
    checkpoints.end(!failed);  // what failed before is told
    report.end(step, failed ? "error" : signal != 0 ? "interrupted" : reason, seconds_now() - began);
    share_failure(ranks, failure());
    return signal != 0 ? 128 + signal : 0;
}

int Training::evaluate() {
    const double began = seconds_now();
    int signal = validate(0);
    if (unreadable) std::rethrow_exception(unreadable);
    if (plan.sampler && signal == 0) signal = sample(0);
    report.end(0, signal != 0 ? "interrupted" : "evaluated", seconds_now() - began);
    share_failure(*context.communicator, report.failure());
    return signal != 0 ? 128 + signal : 0;
}

// From the options to the exit code, on every rank.
int run(const Options& options, std::shared_ptr<Communicator>& communicator, Interrupt& interrupt) {
    Context context = open_context(options, communicator);
    Communicator& ranks = *context.communicator;
    const bool first_rank = ranks.rank() == 0;
    Tuning tuning(options, context);
    const Found found = find_resumption(options, ranks);
    const Resumption* const resumption = found.resumption ? &*found.resumption : nullptr;
    Plan plan = together(ranks, [&] { return make_plan(options, resumption, context); });
    for (const auto& facts : {plan.data.train_facts, plan.data.val_facts})
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
    plan.memory = together(ranks, [&] {
        const bool copies = device::memory_is_host_memory() && plan.loader && !options.output_dir.empty();
        return plan_memory(plan.setup, plan.table, context, plan.reduce_in_bf16,
                           copies ? CheckpointWriter::copy_bytes(plan.table, plan.setup.sharding,
                                                                 plan.optimizer.onebit) : 0,
                           plan.optimizer.onebit);
    });
    const std::string passed_over = context.attention.plan(attention_problem(plan.setup)).passed_over;
    if (!passed_over.empty() && first_rank) std::cerr << "note: attention goes without cuDNN: " << passed_over << '\n';
    if (!plan.start.note.empty() && first_rank) std::cerr << "note: " << plan.start.note << '\n';
    std::vector<RunFact> facts = facts_of_run(plan, options, context);
    if (first_rank) std::cout << terminal_text(facts) << std::flush;
    try {
        together(ranks, [&] { require_room(plan.memory); });
    } catch (const Error& error) {
        if (!options.ignore_memory_plan) throw;
        if (first_rank) std::cerr << "note: goes on as --ignore-memory-plan says: " << error.what() << '\n';
    }
    const auto tell_choices = [&] {
        facts.push_back(fact_of_choices(tuning));
        if (!first_rank) return;
        for (const std::string& note : tuning.notes()) std::cerr << "note: " << note << '\n';
        std::cout << facts.back().lines << std::flush;
    };
    if (options.dry_run) {
        tell_choices();
        return 0;
    }

    const auto model = make_model(plan.setup, plan.table, context);
    load_initial_weights(*model, plan, std::uint64_t(options.seed), ranks);
    if (kernels::Matmul::chooses_by_shape()) tuning.choose([&] { choose_products(*model, plan, context); });
    tuning.save();
    tell_choices();
    Report report = together(ranks, [&] {
        return Report(options.output_dir, plan.total_steps, first_rank, appends);
    });
    on_first_rank(ranks, [&] { make_way(found, options); });
    if (options.output_dir.empty() && first_rank) std::cout << "no --output-dir: neither log nor model will be kept\n";
    report.start(start_event(facts));
    if (resumption || report.appended())
        report.resume(plan.first_step, resumption ? resumption->folder.string() : "", changes.options);

    Training training{options, plan, context, *model, report, interrupt};
    return options.eval_only ? training.evaluate() : training.train(resumption);
}

int exit_code_of(const Error& error) { return error.blame() == Blame::input ? 2 : 1; }

// Says why the program ends and returns its exit code; where others run, ends them too.
int end(Communicator* communicator, const std::string& why, int exit_code) {
    if (communicator && communicator->size() > 1) communicator->abort(why, exit_code);
    std::cerr << "error: " << why << std::endl;
    return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
    if (device::memory_is_host_memory()) start_with_threads_that_sleep_soon(argv);
    secure_standard_streams();
    Interrupt interrupt;  // before MPI, which starts threads, too
    std::shared_ptr<Communicator> communicator;  // the context shares it
    try {
        communicator = open_communicator();
        const bool first_rank = communicator->rank() == 0;
        const auto [request, options] = together(*communicator, [&] {
            Options parsed;
            const Request request = parse(argc, argv, parsed);
            return std::pair(request, parsed);
        });
        require_alike(*communicator, facts_of_start(request, options), "start all ranks alike");
        switch (request) {
            case Request::help: if (first_rank) std::cout << help_text(); return 0;
            case Request::version: if (first_rank) std::cout << version_text(version_json()); return 0;
            case Request::run: return run(options, communicator, interrupt);
        }
    } catch (const SharedError& error) {
        if (communicator->rank() == 0) std::cerr << "error: " << error.what() << std::endl;
        return exit_code_of(error);
    } catch (const Error& error) {
        return end(communicator.get(), error.what(), exit_code_of(error));
    } catch (const std::exception& error) {
        return end(communicator.get(), error.what(), 1);
    }
    return 1;
}
