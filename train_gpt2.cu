// train_gpt2.cu - pretrains GPT-2 from the command line: options -> plan -> model -> training loop -> exit code. Host
// code in every build.
//
// Exit codes: 0 the run ended as requested, 1 it failed while running, 2 it could not start, 128 + the signal's number
// (130 for Ctrl-C) it was interrupted and has saved a checkpoint, if it has a folder for it.
#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/device/range.h"
#include "llmc/base/clock.h"
#include "llmc/base/ignored_signals.h"
#include "llmc/base/short_omp_spin.h"
#include "llmc/base/standard_streams.h"
#include "llmc/comm/agreement.h"
#include "llmc/run/control/between_steps.h"
#include "llmc/run/start/startup.h"
#include "llmc/run/start/version.h"

using namespace llmc;

namespace {

int exit_code_after(int signal) { return signal != 0 ? 128 + signal : 0; }  // 0: no signal

// A run from its start to its exit code. Every rank has one and makes the same calls; only rank 0 prints, samples and
// writes the log.
struct Trainer {
    Startup startup;
    Context& context;
    Interrupt& interrupt;
    const RunPlan& plan = startup.plan;
    const Options& options = plan.options;
    RunBatches& batches = startup.data.batches;
    const std::unique_ptr<Model> model = make_initial_model(startup, context);
    BatchUpload upload{plan.setup.shape, plan.setup.config.vocabulary, context};
    RunHealth health{{.vocabulary = plan.setup.config.vocabulary, .warmup_steps = plan.warmup_steps,
                      .may_overfit = options.overfit_batch, .in_order = !options.shuffle,
                      .starts_trained = !startup.start.path.empty() && plan.first_step == 0,
                      .output_dir = options.output_dir, .total_steps = plan.steps.total}};
    std::optional<Report> report{};
    std::optional<Evaluator> evaluator{};

    // Nothing is written before.
    void open_log() {
        report.emplace(open_report(startup, context));
        evaluator.emplace(Evaluator::Inputs{.shape = plan.setup.shape, .tokenizer = *plan.tokenizer,
                                            .validation = batches.validation,
                                            .hellaswag = batches.hellaswag ? &*batches.hellaswag : nullptr,
                                            .sampler = plan.sampler ? &*plan.sampler : nullptr},
                          context, *model, upload, health, *report, interrupt);
    }
    int evaluate();
    int train();
    int run_steps(GradientExchange& gradients, OptimizerStep& optimizer, CheckpointWriter& checkpoints);
};

// Returns the exit code.
int Trainer::run_steps(GradientExchange& gradients, OptimizerStep& optimizer, CheckpointWriter& checkpoints) {
    const Resumption* const resumption = startup.resumption();
    Communicator& ranks = *context.world;
    const MicroBatchShape shape = plan.setup.shape;
    optimizer.round_parameters(*model);
    StepNoise noise(options.noise_scale_beta);
    // Another learning rate, or another option, may mend a run that had begun to diverge: it gets all its steps.
    if (resumption) health.restore(resumption->state, /*counts_failed=*/startup.changes.options.empty());
    if (resumption && !resumption->state.noise.empty())
        noise.restore(resumption->state.noise[0],
                      plan.steps.at(std::max<std::int64_t>(plan.first_step, 1)).relative);
    StepLog step_log(Throughput(flops_per_token(model->table(), shape.seq_len), plan.peak_flops), noise,
                     plan.measures_noise(),
                     {.steps = plan.steps, .optimizer = optimizer, .ranks = ranks, .health = health,
                      .report = *report});
    StepBatches step_batches(*batches.loader, options.overfit_batch, shape.rows());
    BetweenSteps between_steps(plan.between_steps,
                               {.ranks = ranks, .steps = plan.steps, .optimizer = optimizer.optimizer(),
                                .interrupt = interrupt, .report = *report,
                                .evaluator = *evaluator, .checkpoints = checkpoints, .step_log = step_log,
                                .health = health, .batches = step_batches},
                               resumption ? &resumption->state : nullptr);
    try {
        for (std::int64_t made = plan.first_step; between_steps.run(made) == BetweenSteps::Next::step; ++made) {
            const device::Range step_range("step");
            step_log.begin();
            const StepSize size = plan.steps.at(made + 1);
            Report::Step record{.size = size};
            // Gradient accumulation: every token has the same weight, whatever micro-batch it is in.
            const float token_weight = float(1.0 / double(size.positions_of_worker()));
            for (int micro_batch = 0; micro_batch < size.micro_batches; ++micro_batch) {
                const device::Range micro_batch_range("micro-batch");
                const Batch& batch = step_batches.next(micro_batch);
                record.parts.data += step_log.lap();
                if (micro_batch == 0) record.epoch = batch.from.epoch;
                gradients.begin({.index = micro_batch, .count = size.micro_batches,
                                 .valid_targets = batch.valid_targets});
                model->forward_backward(upload.upload(batch.inputs, batch.targets, shape, Purpose::training),
                                        token_weight, gradients);
                record.parts.passes += step_log.lap();
            }
            if (!between_steps.all_can_update()) break;
            record.parts.agreement = step_log.lap();
            record.progress = between_steps.progress();
            record.seconds_of_tasks = between_steps.seconds_of_tasks(size.number);
            const auto learning_rate =
                float(plan.schedule.learning_rate(size, record.progress ? record.progress->share : 0));
            optimizer.run(*model, {.learning_rate = learning_rate, .positions = size.positions_of_worker(),
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

int Trainer::train() {
    const auto gradients = make_gradient_exchange(plan.table, plan.exchange(), context);
    OptimizerStep optimizer(*model, *gradients, plan.optimizer, context);
    if (const Resumption* const from = startup.resumption())
        load_optimizer(optimizer, from->folder, from->state, plan.table, context);
    open_log();
    CheckpointWriter checkpoints({.output_dir = options.output_dir, .end_of_text = plan.end_of_text,
                                  .tokenizer = plan.tokenizer_files, .keep_checkpoints = options.keep_checkpoints,
                                  .major_every = options.major_every, .keep_best = options.keep_best,
                                  .first_step = plan.first_step, .run = plan.identity},
                                 *model, optimizer, context, *report);
    return run_steps(*gradients, optimizer, checkpoints);
}

int Trainer::evaluate() {
    open_log();
    const double began = seconds_now();
    int signal = batches.validation.empty() ? 0 : evaluator->validate(0);
    if (evaluator->unreadable()) std::rethrow_exception(evaluator->unreadable());
    if (batches.hellaswag && signal == 0) signal = evaluator->score_hellaswag(0).signal;
    if (plan.sampler && signal == 0) signal = evaluator->sample(0);
    report->end(0, signal != 0 ? "interrupted" : "evaluated", seconds_now() - began);
    share_failure(*context.world, report->failure());
    return exit_code_after(signal);
}

// From the command line to the exit code, on every rank.
int run(const CommandLine& line, std::shared_ptr<Communicator>& communicator, Interrupt& interrupt) {
    std::unique_ptr<LineFile> log = lock_log(line.options, *communicator);  // before checkpoints are looked at
    ResumeSearch search = find_resumption(line.options, *communicator);
    const Options options =
        together(*communicator, [&] { return options_of_run(line, search, communicator->size()); });
    Context context = open_context(options, communicator);
    Startup startup = prepare_run(options, std::move(search), context);
    if (options.dry_run) return 0;
    startup.log = std::move(log);
    Trainer trainer{std::move(startup), context, interrupt};
    return options.eval_only ? trainer.evaluate() : trainer.train();
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
                const ResumeSearch search = find_resumption(line.options, *communicator);
                const Options options = options_of_run(line, search, communicator->size());
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
