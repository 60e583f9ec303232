// train_gpt2.cu - pretrains GPT-2 from the shell: options -> plan -> model -> loop -> exit code. Host code in every
// build.
//
// Exit codes: 0 the run ended as asked, 1 it failed on the way, 2 it could not start, 128 + the signal's number (130
// for Ctrl-C) it was interrupted, and saved.
#include <iostream>
#include <optional>

#include "kernels/device/range.h"
#include "llmc/base/standard_streams.h"
#include "llmc/base/waiting_threads.h"
#include "llmc/comm/agreement.h"
#include "llmc/run/checkpoint_writer.h"
#include "llmc/run/interrupt.h"
#include "llmc/run/open_context.h"
#include "llmc/run/planned_run.h"
#include "llmc/run/run_control.h"
#include "llmc/run/run_evaluation.h"
#include "llmc/run/start_facts.h"
#include "llmc/run/step_batches.h"
#include "llmc/run/step_log.h"
#include "llmc/run/version.h"

using namespace llmc;

namespace {

int exit_code_after(int signal) { return signal != 0 ? 128 + signal : 0; }  // 0: no signal

// What a run trains and shows. Every rank has one and calls the same; rank 0 alone prints, samples and writes.
struct Training {
    const Options& options;
    Plan& plan;
    Context& context;
    Model& model;
    Report& report;
    Interrupt& interrupt;
    BatchUpload upload{plan.setup.shape, plan.start.config.vocabulary, context};
    RunEvaluation evaluation{plan, context, model, upload, report, interrupt};

    // Somebody asked for a checkpoint (SIGUSR2).
    void take_save_request() {
        interrupt.save_begins();
        if (context.communicator->rank() == 0 && options.output_dir.empty())
            std::cerr << "note: SIGUSR2: no --output-dir, so there is nowhere to save\n";
    }

    // Both return the exit code.
    int train(const Resumption* resumption);
    int evaluate();
};

int Training::train(const Resumption* resumption) {
    Communicator& ranks = *context.communicator;
    const MicroBatchShape shape = plan.setup.shape;
    const auto gradients = make_gradient_exchange(plan.table, plan.exchange(), context);
    const auto made = make_optimizer(model, *gradients, plan.optimizer, context);
    Optimizer& optimizer = *made;
    if (resumption) load_moments(optimizer, resumption->folder, resumption->state, plan.table, ranks);
    optimizer.round_parameters(model);
    Throughput throughput(flops_per_token(model.table(), shape.seq_len), plan.peak_flops);
    RunNoise noise(gradients->sums().module_names(), options.noise_scale_beta);
    StepLog step_log(optimizer, throughput, report, ranks, plan.total_steps, plan.measures_noise() ? &noise : nullptr,
                     shape.seq_len);
    StepBatches batches(*plan.loader, options.overfit_batch, shape.rows());
    CheckpointWriter checkpoints({.output_dir = options.output_dir, .sharding = plan.setup.sharding,
                                  .end_of_text = plan.data.vocabulary().end_of_text,
                                  .tokenizer = tokenizer_files(*plan.tokenizer, plan.start.config.max_seq_len),
                                  .keep_checkpoints = options.keep_checkpoints, .major_every = options.major_every},
                                 model, optimizer, gradients->buckets(), context, report);
    RunControl control(plan.control, ranks);
    if (resumption) {
        step_log.restore({resumption->state.failed_in_a_row, resumption->state.without_update});
        if (!resumption->state.noise.empty()) noise.restore(resumption->state.noise);
        control.restore(resumption->state);
    }
    // Of data or log, or no updates any more: what has been trained so far is sound, and is saved.
    const auto failure = [&] {
        return evaluation.unreadable() ? evaluation.unreadable() : batches.failure() ? batches.failure()
               : report.failure() ? report.failure() : step_log.failure();
    };
    const float token_weight = float(1.0 / double(plan.step_tokens));  // of one token in the gradient
    LoaderPosition next = plan.loader->position();                     // of the batches of the next step
    std::int64_t step = plan.first_step;
    while (true) {
        // Between two updates: is this the end, and what is due?
        control.reach(step, {.signal = interrupt.signal(), .save_asked = interrupt.save_asked(),
                             .failed = failure() != nullptr, .writing = checkpoints.is_writing()});
        if (!control.writing()) checkpoints.end(false);  // all ranks have written
        if (control.save_asked()) take_save_request();
        if (control.pauses()) step_log.flush();
        if (control.ends() && step_log.failure()) control.fail();  // of the last step; all ranks have the same numbers
        if (control.validation_due()) {
            const int signal = evaluation.validate(step);
            if (evaluation.unreadable()) continue;  // on every rank: the run ends here
            control.end_validation(signal);
        }
        if (control.hellaswag_due()) {
            const HellaSwagScore score = evaluation.score_hellaswag(step, [&] { return control.out_of_time(); });
            if (score.signal == 0 && score.out_of_time) continue;  // on every rank: the run ends here, and owes it
            control.end_hellaswag(score.signal);
        }
        if (control.samples_due()) control.end_samples(evaluation.sample(step));
        if (control.checkpoint_due()) {
            checkpoints.begin({.step = step, .optimizer = optimizer.counts(),
                               .failed_in_a_row = step_log.in_a_row().failed,
                               .without_update = step_log.in_a_row().without_update,
                               .validated = !control.owes_validation(), .scored = !control.owes_hellaswag(),
                               .sampled = !control.owes_samples(), .data = next, .noise = noise.averages(),
                               .run = plan.run});
            control.checkpoint_begun();
        }
        if (control.ends()) break;

        // One update: the gradients of all micro-batches add up, every token with the same weight.
        const device::Range step_range("step");
        const auto step_began = step_log.begin();
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
        // Before anything is updated; as cheap as reach(), since the device still has these micro-batches to do.
        if (ranks.host_reduce(batches.failure() != nullptr, HostReduction::max) != 0) continue;
        const auto learning_rate = float(plan.schedule.learning_rate(step));
        optimizer.step(model, {.learning_rate = learning_rate, .positions = plan.step_tokens});
        step_log.enqueued(record, step_began);
        next = plan.loader->position();
        ++step;
    }
    checkpoints.end(!control.failed());  // what failed before is told
    report.end(step, control.reason(), control.seconds());
    share_failure(ranks, failure());
    return exit_code_after(control.signal());
}

int Training::evaluate() {
    const double began = seconds_now();
    int signal = evaluation.validate(0);
    if (evaluation.unreadable()) std::rethrow_exception(evaluation.unreadable());
    if (plan.hellaswag && signal == 0) signal = evaluation.score_hellaswag(0).signal;
    if (plan.sampler && signal == 0) signal = evaluation.sample(0);
    report.end(0, signal != 0 ? "interrupted" : "evaluated", seconds_now() - began);
    share_failure(*context.communicator, report.failure());
    return exit_code_after(signal);
}

// From the options to the exit code, on every rank.
int run(const Options& options, std::shared_ptr<Communicator>& communicator, Interrupt& interrupt) {
    Context context = open_context(options, communicator);
    PlannedRun planned = plan_run(options, context);
    if (options.dry_run) return 0;
    const auto model = make_initial_model(planned, options, context);
    Report report = begin_report(planned, options, context);
    Training training{options, planned.plan, context, *model, report, interrupt};
    return options.eval_only ? training.evaluate() : training.train(planned.resumption());
}

int exit_code_of(const Error& error) { return error.blame() == Blame::input ? 2 : 1; }

// Says why the program ends and returns its exit code; where others run, ends them too.
int end(Communicator* communicator, const std::string& why, int exit_code) {
    if (communicator && communicator->size() > 1) communicator->abort(why, exit_code);
    tell_stderr("error: " + why);
    return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
    if (device::memory_is_host_memory()) start_with_threads_that_sleep_soon(argv);
    secure_standard_streams();
    std::optional<Interrupt> interrupt;
    std::shared_ptr<Communicator> communicator;  // the context shares it
    try {
        interrupt.emplace();  // before MPI, which starts threads, too
        communicator = open_communicator();
        const bool first_rank = communicator->rank() == 0;
        const auto [request, options] = parse_alike(argc, argv, *communicator);
        switch (request) {
            case Request::help: if (first_rank) std::cout << help_text(); return 0;
            case Request::version: if (first_rank) std::cout << version_text(version_json()); return 0;
            case Request::run: return run(options, communicator, *interrupt);
        }
    } catch (const SharedError& error) {
        if (communicator->rank() == 0) tell_stderr(std::string("error: ") + error.what());
        return exit_code_of(error);
    } catch (const Error& error) {
        return end(communicator.get(), error.what(), exit_code_of(error));
    } catch (const std::exception& error) {
        return end(communicator.get(), error.what(), 1);
    }
    return 1;
}
