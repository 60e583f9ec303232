// train_gpt2.cu - pretrains GPT-2 from the shell: options -> plan -> model -> loop -> exit code. Host code in every
// build.
//
// Exit codes: 0 the run ended as asked, 1 it failed on the way, 2 it could not start, 128 + the signal's number (130
// for Ctrl-C) it was interrupted, and saved.
#include <filesystem>
#include <iostream>
#include <limits>

#include "kernels/device/device.h"
#include "kernels/device/stream.h"
#include "llmc/base/fingerprint.h"
#include "llmc/comm/agreement.h"
#include "llmc/comm/placement.h"
#include "llmc/data/data_loader.h"
#include "llmc/model/memory_plan.h"
#include "llmc/model/optimizer.h"
#include "llmc/run/evaluation.h"
#include "llmc/run/interrupt.h"
#include "llmc/run/options.h"
#include "llmc/run/schedule.h"
#include "llmc/run/start_facts.h"
#include "llmc/run/step_log.h"
#include "llmc/run/version.h"
#include "llmc/weights/checkpoint.h"

using namespace llmc;

namespace {

Context open_context(const Options& options, std::unique_ptr<Communicator>& communicator) {
    const auto bf16 = value_by_name("--bf16-arithmetic", options.bf16_arithmetic, kBf16Arithmetics);
    const auto attention = value_by_name("--attention", options.attention, kernels::kAttentionMethods);
    const auto transport = value_by_name("--comm", options.comm, kTransports);
    Placement placement = place_rank(*communicator, int(options.threads), int(options.device), transport);
    if (placement.nccl) communicator = over_nccl(std::move(communicator));
    return {std::move(placement.device), device::Stream(), kernels::Matmul({.tf32 = options.tf32, .bf16 = bf16}),
            // main() keeps it
            kernels::Attention({.method = attention}),
            std::shared_ptr<Communicator>(communicator.get(), [](Communicator*) {})};
}

// The shards, and what they say of their tokens. Either may be missing, not both. Batches refer to them, so they stay
// where they are.
struct Data {
    std::unique_ptr<const ShardSet> train, val;
    Vocabulary vocabulary() const { return train ? train->vocabulary() : val->vocabulary(); }
};

Data open_data(const Options& options) {
    Data data;
    if (!options.train_data.empty()) data.train = std::make_unique<ShardSet>(options.train_data);
    if (!options.val_data.empty()) data.val = std::make_unique<ShardSet>(options.val_data);
    if (data.train && data.val && data.train->vocabulary() != data.val->vocabulary())
        fail("the vocabulary of " + options.val_data, data.val->vocabulary().size,
             "that of " + options.train_data + ", " + std::to_string(data.train->vocabulary().size),
             "tokenize both with the same tokenizer");
    return data;
}

// The model that --init names or holds.
struct Start {
    ModelConfig config;
    std::optional<Checkpoint> checkpoint;  // empty: random weights
};

Start starting_point(const Options& options, Vocabulary vocabulary) {
    Start start;
    if (std::filesystem::exists(options.init) || options.init.find('/') != std::string::npos) {
        start.checkpoint.emplace(options.init);
        start.config = start.checkpoint->config();
    } else {
        start.config = model_by_name(options.init, vocabulary.size).config;
    }
    check(start.config);
    require(start.config.vocabulary >= vocabulary.size, "the vocabulary of --init " + options.init,
            start.config.vocabulary, "at least that of the shards, " + std::to_string(vocabulary.size),
            "use shards made for this model, or another --init");
    require(options.seq_len <= start.config.max_seq_len, "--seq-len", options.seq_len,
            "at most the model's " + std::to_string(start.config.max_seq_len) + " positions",
            "make it smaller, or train a model with more positions (custom:...,t=N)");
    return start;
}

std::vector<float> initial_weights(const Start& start, const ParameterTable& table, std::uint64_t seed) {
    std::vector<float> weights(std::size_t(table.elements()));
    if (start.checkpoint) start.checkpoint->read(table, weights);
    else table.initialise(weights, seed);
    return weights;
}

// Everything that follows from the options and the data, decided before anything large is allocated and anything is
// written.
struct Plan {
    Data data;
    Start start;
    ModelSetup setup;
    std::int64_t step_tokens, total_steps = 0;  // positions of one update; updates
    int micro_batches;
    std::unique_ptr<DataLoader> loader;            // none with --eval-only
    std::optional<ValidationBatches> validation;
    std::optional<TextSampler> sampler;
    NoiseChoice noise{SmallBatches::none, ""};
    bool reduce_in_bf16 = false;
};

Plan make_plan(const Options& o, const Communicator& communicator) {
    Plan plan{.data = open_data(o)};
    const Vocabulary vocabulary = plan.data.vocabulary();
    plan.start = starting_point(o, vocabulary);
    const MicroBatchShape shape{int(o.micro_batch), int(o.seq_len)};
    plan.setup = {.config = plan.start.config, .dtype = value_by_name("--dtype", o.dtype, kDTypes), .shape = shape,
                  .recompute = value_by_name("--recompute", o.recompute, kRecomputeLevels), .training = !o.eval_only,
                  .sharding = {.stage = int(o.zero_stage), .rank = communicator.rank(), .ranks = communicator.size()}};
    const BatchShape batch{.micro_batch = shape.batch, .seq_len = shape.seq_len, .rank = communicator.rank(),
                           .world = communicator.size()};
    plan.step_tokens = o.total_batch_tokens > 0 ? o.total_batch_tokens : batch.global_positions();
    const std::int64_t at_once = batch.global_positions(), below = plan.step_tokens / at_once * at_once;
    if (plan.step_tokens % at_once != 0)
        fail("--total-batch-tokens", plan.step_tokens,
             "a multiple of --micro-batch * --seq-len * ranks = " + std::to_string(o.micro_batch) + " * " +
                 std::to_string(o.seq_len) + " * " + std::to_string(batch.world) + " = " + std::to_string(at_once),
             plan.step_tokens < at_once
                 ? "the nearest is " + std::to_string(at_once)
                 : "the nearest are " + std::to_string(below) + " and " + std::to_string(below + at_once));
    require(plan.step_tokens / at_once <= std::numeric_limits<int>::max(), "--total-batch-tokens", plan.step_tokens,
            "at most 2147483647 micro-batches of " + std::to_string(at_once) + " tokens");
    plan.micro_batches = int(plan.step_tokens / at_once);
    plan.reduce_in_bf16 = o.reduce_dtype == "bf16";
    if (!o.eval_only) {
        const auto estimator = value_by_name("--noise-scale", o.noise_scale, kNoiseEstimators);
        plan.noise = choose_noise_estimator(estimator, int(o.zero_stage), batch.world, plan.micro_batches);
        const auto shuffle_seed = o.shuffle ? std::optional(std::uint64_t(o.seed)) : std::nullopt;
        const DataLoaderOptions how{.shape = batch, .micro_batches = plan.micro_batches, .shuffle_seed = shuffle_seed,
                                    .mask_document_start = o.mask_document_start, .pad = o.pad_last};
        plan.loader = std::make_unique<DataLoader>(*plan.data.train, how);
        plan.total_steps = o.max_steps > 0 ? o.max_steps : plan.loader->steps_in(o.epochs);
        require(
            plan.total_steps > 0, "--epochs", o.epochs,
            "enough passes over the training shards for one update of " + std::to_string(plan.step_tokens) + " tokens",
            "give --max-steps, a smaller --total-batch-tokens, or more data");
    }
    if (plan.data.val) plan.validation.emplace(*plan.data.val, o.val_tokens, batch);
    if (o.sample_every > 0)
        plan.sampler.emplace(SampleSettings{.prompt = o.prompt, .tokens = int(o.sample_tokens),
                                            .samples = int(o.samples), .top_k = int(o.top_k),
                                            .temperature = o.temperature, .seed = std::uint64_t(o.seed),
                                            .longest = int(o.seq_len)},
                             Vocabulary{plan.start.config.vocabulary, vocabulary.end_of_text});
    return plan;
}

std::string describe_shards(const char* what, const ShardSet& shards) {
    return std::string(what) + ": " + std::to_string(shards.size()) + (shards.size() == 1 ? " shard, " : " shards, ") +
           std::to_string(shards.tokens()) + " tokens, vocabulary " + std::to_string(shards.vocabulary().size) + '\n';
}

bool measures_noise(const Plan& plan) { return plan.noise.small_batches != SmallBatches::none; }

void print(const Plan& plan, const Options& options, Context& context) {
    const device::Info& device = context.device;
    std::cout << version_text(version_json()) << "device: " << device.name << ", " << device.threads
              << (device.threads == 1 ? " thread" : " threads") << (context.communicator->size() > 1 ? " a rank" : "")
              << '\n'
              << "communication: " << context.communicator->describe() << '\n'
              << "matrix library: " << context.matmul.describe(plan.setup.dtype) << '\n'
              << "attention: " << context.attention.describe(attention_problem(plan.setup)) << '\n'
              << "options: " << to_json(options).dump() << '\n';
    if (plan.data.train) std::cout << describe_shards("training data", *plan.data.train);
    if (plan.loader) std::cout << "  " << plan.loader->dropped_tokens() << " tokens an epoch are left over\n";
    if (plan.data.val) std::cout << describe_shards("validation data", *plan.data.val);
    if (plan.validation && plan.validation->all_there_is())
        std::cout << "  all " << plan.validation->targets() << " targets are used: fewer than --val-tokens\n";
    const ParameterTable table(plan.start.config);
    std::cout << "model: " << describe(plan.start.config) << ", " << table.parameters() << " parameters ("
              << table.decayed().elements << " decayed in " << table.decayed().tensors << " tensors, "
              << table.not_decayed().elements << " not in " << table.not_decayed().tensors << ")\n";
    if (plan.loader)
        std::cout << "training: " << plan.total_steps << " steps of " << plan.step_tokens
                  << " tokens, micro-batches in each: " << plan.micro_batches
                  << (measures_noise(plan) ? ", noise scale by " : "") << name_of(plan.noise.small_batches) << '\n';
    if (!plan.noise.note.empty()) std::cout << plan.noise.note << '\n';
    std::cout << plan_memory(plan.setup, context, plan.reduce_in_bf16).text() << std::flush;
}

nlohmann::ordered_json start_event(const Plan& plan, const Options& options, Context& context) {
    return {{"event", "start"},
            {"version", version_json()},
            {"options", to_json(options)},
            {"device", context.device.name},
            {"threads", context.device.threads},
            {"ranks", context.communicator->size()},
            {"communication", context.communicator->describe()},
            {"matmul", context.matmul.describe(plan.setup.dtype)},
            {"attention", context.attention.describe(attention_problem(plan.setup))},
            {"model", describe(plan.start.config)},
            {"parameters", ParameterTable(plan.start.config).parameters()},
            {"total_steps", plan.total_steps},
            {"tokens_per_step", plan.step_tokens},
            {"noise_scale", measures_noise(plan) ? nlohmann::ordered_json(name_of(plan.noise.small_batches))
                                                 : nlohmann::ordered_json()},
            {"planned_bytes", plan_memory(plan.setup, context, plan.reduce_in_bf16).total()}};
}

// The batches of one update after another; with --overfit-batch those of the first, again and again.
class Batches {
public:
    Batches(DataLoader& loader, bool repeat_first_step) : loader_(loader), repeat_(repeat_first_step) {}
    const Batch& next(int micro_batch) {
        if (!repeat_) return loader_.next();
        if (std::ssize(first_step_) <= micro_batch) first_step_.push_back(loader_.next());
        return first_step_[std::size_t(micro_batch)];
    }

private:
    DataLoader& loader_;
    bool repeat_;
    std::vector<Batch> first_step_;
};

// What a run trains and shows. Every rank has one and calls the same; rank 0 alone prints, samples and writes.
struct Training {
    const Options& options;
    Plan& plan;
    Context& context;
    Model& model;
    Report& report;
    BatchUpload upload{plan.setup.shape, plan.start.config.vocabulary, context};

    // After `step` updates.
    void validate(std::int64_t step) {
        const auto [loss, seconds] = validation_loss(*plan.validation, model, upload, plan.setup.shape, context);
        report.validation(step, loss, plan.validation->targets(), seconds);
    }
    void sample(std::int64_t step) {
        model.wait_for_parameters();
        on_first_rank(*context.communicator, [&] {
            for (const std::string& text : plan.sampler->draw(model)) report.sample(step, text);
        });
    }
    void save(std::int64_t step) {
        const TensorSource master_weights = model.master_weights_on_host();
        on_first_rank(*context.communicator, [&] {
            const int end_of_text = plan.data.vocabulary().end_of_text;
            report.checkpoint(step,
                              save_checkpoint(options.output_dir, step, model.table(), master_weights, end_of_text));
        });
    }

    int train(const Interrupt& interrupt);
};

// Returns the exit code.
int Training::train(const Interrupt& interrupt) {
    Communicator& ranks = *context.communicator;
    const MicroBatchShape shape = plan.setup.shape;
    const auto rounding_seed = options.stochastic_rounding ? std::optional(std::uint64_t(options.seed)) : std::nullopt;
    GradientExchange gradients(model.table(), {.sharding = plan.setup.sharding,
                                               .small_batches = plan.noise.small_batches,
                                               .reduce_in_bf16 = plan.reduce_in_bf16}, context);
    Optimizer optimizer(model, gradients, {.beta1 = float(options.beta1), .beta2 = float(options.beta2),
                                           .eps = float(options.eps), .weight_decay = float(options.weight_decay),
                                           .max_grad_norm = float(options.grad_clip),
                                           .rounding_seed = rounding_seed}, context);
    optimizer.round_parameters(model);
    const Schedule schedule{.kind = value_by_name("--lr-schedule", options.lr_schedule, kLrSchedules),
                            .peak = options.lr, .final_fraction = options.final_lr_fraction,
                            .warmup_steps = options.warmup_steps, .total_steps = plan.total_steps};
    auto peak = peak_flops(context.device, plan.setup.dtype, options.tf32);
    if (peak) *peak *= ranks.size();
    Throughput throughput(flops_per_token(model.table(), shape.seq_len), peak);
    RunNoise noise(gradients.module_names(), options.noise_scale_beta);
    StepLog step_log(optimizer, throughput, report, ranks, plan.total_steps, measures_noise(plan) ? &noise : nullptr,
                     shape.seq_len);
    Batches batches(*plan.loader, options.overfit_batch);
    const float token_weight = float(1.0 / double(plan.step_tokens));  // of one token in the gradient
    std::string reason = "all steps made";
    int signal = 0;
    const double began = seconds_now();

    std::int64_t step = 0;
    for (;; ++step) {
        // Between two updates: is this the end, and what is due?
        std::int64_t wishes[] = {interrupt.signal(),
                                 options.max_minutes > 0 && seconds_now() - began >= options.max_minutes * 60};
        ranks.host_reduce(wishes, HostReduction::max);  // what one rank must, all do, before the same step
        signal = int(wishes[0]);
        const bool interrupted = signal != 0;
        const bool out_of_time = wishes[1] != 0;
        if (interrupted) reason = "interrupted";
        else if (out_of_time) reason = "out of time (--max-minutes)";
        const bool last = interrupted || out_of_time || step == plan.total_steps;
        const auto due = [&](std::int64_t every) { return every > 0 && (last || step % every == 0); };
        const bool validation_due = plan.validation && due(options.val_every) && !interrupted;
        const bool sample_due = plan.sampler && due(options.sample_every) && step > 0 && !interrupted;
        const bool save_due = !options.output_dir.empty() && (last || (due(options.checkpoint_every) && step > 0));
        if (validation_due || sample_due || save_due || last) step_log.flush();
        if (validation_due) validate(step);
        if (sample_due) sample(step);
        if (save_due) save(step);
        if (last) break;

        // One update: the gradients of all micro-batches add up, every token with the same weight.
        const double step_began = seconds_now();
        Report::Step record{.step = step, .positions = plan.step_tokens,
                            .tokens_so_far = (step + 1) * plan.step_tokens};
        for (int micro_batch = 0; micro_batch < plan.micro_batches; ++micro_batch) {
            const Batch& batch = batches.next(micro_batch);
            record.epoch = batch.from.epoch;
            gradients.begin({.index = micro_batch, .count = plan.micro_batches, .valid_targets = batch.valid_targets});
            model.forward_backward(upload.upload(batch.inputs, batch.targets, shape, true), token_weight, gradients);
        }
        optimizer.step(model, {.learning_rate = float(schedule.learning_rate(step)), .positions = plan.step_tokens});
        step_log.enqueued(record, step_began);
    }
    report.end(step, reason, seconds_now() - began);
    return signal != 0 ? 128 + signal : 0;
}

// From the options to the exit code, on every rank.
int run(const Options& options, std::unique_ptr<Communicator>& communicator, const Interrupt& interrupt) {
    Context context = open_context(options, communicator);
    Communicator& ranks = *context.communicator;
    const bool first_rank = ranks.rank() == 0;
    Plan plan = together(ranks, [&] { return make_plan(options, ranks); });
    const auto data = together(ranks, [&] { return facts_of_data(plan.data.train.get(), plan.data.val.get()); });
    require_alike(ranks, data, "give all ranks the same files");
    // Refuses a method asked for in vain.
    const std::string passed_over = together(
        ranks, [&] { return context.attention.plan(attention_problem(plan.setup)).passed_over; });
    if (!passed_over.empty() && first_rank) std::cerr << "note: attention goes without cuDNN: " << passed_over << '\n';
    if (first_rank) print(plan, options, context);
    together(ranks, [&] { return require_room(plan.setup, context, plan.reduce_in_bf16), 0; });
    if (options.dry_run) return 0;

    const auto model = make_model(plan.setup, context);
    {
        const auto weights = together(
            ranks, [&] { return initial_weights(plan.start, model->table(), std::uint64_t(options.seed)); });
        const std::string bits = ranks.size() > 1 ? fingerprint(std::as_bytes(std::span(weights))) : "";
        require_alike(ranks, {{"initial weights with the fingerprint", bits}}, "give all ranks the same --init");
        model->load(weights);
    }
    std::optional<Report> report;
    on_first_rank(ranks, [&] { report.emplace(options.output_dir, plan.total_steps); });
    if (!first_rank) report.emplace("", plan.total_steps, false);
    if (options.output_dir.empty() && first_rank) std::cout << "no --output-dir: neither log nor model will be kept\n";
    report->start(start_event(plan, options, context));

    Training training{options, plan, context, *model, *report};
    if (!options.eval_only) return training.train(interrupt);
    training.validate(0);
    if (plan.sampler) training.sample(0);
    return 0;
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
    const Interrupt interrupt;  // first: MPI starts threads, too
    std::unique_ptr<Communicator> communicator;
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
