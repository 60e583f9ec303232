// train_gpt2.cu - pretrains GPT-2 from the command line: options -> plan -> model -> training loop -> exit code. Host
// code in every build.
//
// Exit codes: 0 the run ended as requested, 1 it failed while running, 2 it could not start, 128 + the signal's number
// (130 for Ctrl-C) it was interrupted and has saved a checkpoint, if it has a folder for it.
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/device/range.h"
#include "llmc/base/clock.h"
#include "llmc/base/process_start.h"
#include "llmc/base/standard_streams.h"
#include "llmc/comm/agreement.h"
#include "llmc/run/loop/between_steps.h"
#include "llmc/run/start/startup.h"
#include "llmc/run/start/version.h"

using namespace llmc;

namespace {

int exit_code_after(int signal) { return signal != 0 ? 128 + signal : 0; }  // 0: no signal

// Every rank makes the same calls, also in the parts of the loop. Returns the exit code.
int train(Loop& loop) {
    const RunPlan& plan = loop.plan;
    const RunSettings& options = plan.settings;
    const MicroBatchShape shape = plan.setup.shape;
    Model& model = *loop.model;
    const auto gradients = make_gradient_exchange(plan.table, plan.exchange(), loop.context);
    OptimizerStep optimizer(model, *gradients, plan.optimizer, loop.context);
    if (const Resumption* const from = loop.startup.resumption()) {
        load_optimizer(optimizer, from->folder, from->state, plan.table, loop.context);
        // Another learning rate, or another option, may mend a run that had begun to diverge: it gets all its steps.
        loop.health.restore(from->state, /*counts_failed=*/loop.startup.changes.options.empty());
    }
    loop.report.emplace(open_report(loop.startup, loop.context));
    CheckpointWriter checkpoints(options.checkpoints,
                                 {.end_of_text = plan.end_of_text, .tokenizer = plan.tokenizer_files,
                                  .first_step = plan.first_step, .run = plan.identity},
                                 model, optimizer, loop.context, *loop.report);
    optimizer.round_parameters(model);
    StepBatches batches(*loop.batches.loader, options.data.overfit_batch, shape.rows());
    StepLog step_log(loop, optimizer);
    BetweenSteps between_steps(loop, optimizer.optimizer(), checkpoints, step_log, batches);
    try {
        // Validates, scores HellaSwag, samples and saves, each at its interval (BetweenSteps::tasks_in_order), and ends
        // the run after its last step, for a signal, a failure, the time limit or --stop-after.
        for (std::int64_t made = plan.first_step; between_steps.do_what_is_due(made); ++made) {
            const device::Range step_range("step");
            step_log.begin();
            const StepSize size = plan.steps.at(made + 1);
            Report::Step record{.size = size};
            // Gradient accumulation: every token has the same weight, whatever micro-batch it is in.
            const float token_weight = float(1.0 / double(size.positions_of_worker()));
            for (int micro_batch = 0; micro_batch < size.micro_batches; ++micro_batch) {
                const device::Range micro_batch_range("micro-batch");
                const Batch& batch = batches.next(micro_batch);
                record.parts.data += step_log.lap();
                if (micro_batch == 0) record.epoch = batch.from.epoch;
                gradients->begin({.index = micro_batch, .count = size.micro_batches,
                                  .valid_targets = batch.valid_targets});
                model.forward_backward(loop.upload.upload(batch.inputs, batch.targets, shape, Purpose::training),
                                       token_weight, *gradients);
                record.parts.passes += step_log.lap();
            }
            if (!between_steps.all_can_update()) break;
            record.parts.agreement = step_log.lap();
            record.progress = between_steps.progress();
            record.seconds_of_tasks = between_steps.seconds_of_tasks(size.number);
            const auto learning_rate =
                float(plan.schedule.learning_rate(size, record.progress ? record.progress->share : 0));
            optimizer.run(model, {.learning_rate = learning_rate, .positions = size.positions_of_worker(),
                                  .new_size = size.changes, .relative = size.relative});
            record.parts.optimizer = step_log.lap();
            step_log.enqueued(record);
        }
        return exit_code_after(between_steps.finish());
    } catch (...) {
        between_steps.end_after_exception();
        throw;
    }
}

// Returns the exit code.
int evaluate(Loop& loop) {
    loop.report.emplace(open_report(loop.startup, loop.context));
    Evaluator evaluator(loop);
    const double began = seconds_now();
    int signal = loop.batches.validation.empty() ? 0 : evaluator.validate(0);
    if (evaluator.unreadable()) std::rethrow_exception(evaluator.unreadable());
    if (loop.batches.hellaswag && signal == 0) signal = evaluator.score_hellaswag(0).signal;
    if (loop.plan.sampler && signal == 0) signal = evaluator.sample(0);
    loop.report->end(0, signal != 0 ? "interrupted" : "evaluated", seconds_now() - began);
    share_failure(*loop.context.world, loop.report->failure());
    return exit_code_after(signal);
}

// From the command line to the exit code, on every rank.
int run(const CommandLine& line, std::shared_ptr<Communicator>& communicator, Interrupt& interrupt) {
    std::unique_ptr<LineFile> log = lock_log(line.settings, *communicator);  // before checkpoints are looked at
    ResumeSearch search = find_resumption(line.settings.checkpoints, *communicator);
    const RunSettings options =
        together(*communicator, [&] { return options_of_run(line, search, communicator->size()); });
    Context context = open_context(options, communicator);
    Startup startup = prepare_run(options, std::move(search), context);
    if (options.dry_run.plans) return 0;
    startup.log = std::move(log);
    Loop loop{std::move(startup), context, interrupt};
    return options.eval_only ? evaluate(loop) : train(loop);
}

int exit_code_of(const Error& error) { return error.blame() == Blame::input ? 2 : 1; }

// Aborts the job on all ranks (like MPI_Abort), prints why, and returns the exit code.
int abort_job(Communicator* communicator, const std::string& why, int exit_code) {
    if (communicator && communicator->size() > 1) communicator->abort(why, exit_code);
    print_stderr("error: " + why);
    return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
    if (device::memory_is_host_memory()) reexec_with_short_omp_spin(argv);  // GOMP_SPINCOUNT is read at load time
    secure_standard_streams();
    ignore_signals_again();
    std::optional<Interrupt> interrupt;
    std::shared_ptr<Communicator> communicator;  // shared with the context
    try {
        interrupt.emplace();  // before MPI, which also starts threads
        communicator = open_communicator();
        const bool first_rank = communicator->rank() == 0;
        const CommandLine line = parse_on_all_ranks(argc, argv, *communicator);
        switch (line.request) {
            case Request::help: if (first_rank) print_stdout(help_text()); return 0;
            case Request::version: if (first_rank) print_stdout(version_text()); return 0;
            case Request::print_config: {
                const ResumeSearch search = find_resumption(line.settings.checkpoints, *communicator);
                const RunSettings options = options_of_run(line, search, communicator->size());
                if (first_rank) print_stdout(config_text(options));
                return 0;
            }
            case Request::run: return run(line, communicator, *interrupt);
        }
    } catch (const SharedError& error) {
        if (communicator->rank() == 0) print_stderr(std::string("error: ") + error.what());
        return exit_code_of(error);
    } catch (const Error& error) {
        return abort_job(communicator.get(), error.what(), exit_code_of(error));
    } catch (const std::exception& error) {
        return abort_job(communicator.get(), message_of(error), 1);
    }
    return 1;
}
