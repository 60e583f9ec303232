// train_gpt2.cu - pretrains GPT-2 from the shell: options -> data -> model -> loop -> exit code. Host code in every build.
//
// Exit codes: 0 the run ended as asked, 1 it failed on the way, 2 it could not start, 128 + the signal's number (130 for Ctrl-C) it was interrupted, and saved.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "llmc/batch_upload.h"
#include "llmc/checkpoint.h"
#include "llmc/data_loader.h"
#include "llmc/interrupt.h"
#include "llmc/memory_plan.h"
#include "llmc/optimizer.h"
#include "llmc/options.h"
#include "llmc/report.h"
#include "llmc/sampler.h"
#include "llmc/schedule.h"
#include "llmc/tokenizer.h"
#include "llmc/validation_batches.h"
#include "llmc/version.h"

using namespace llmc;

namespace {

constexpr int kMostFailedSteps = 10;  // updates in a row that may be skipped for a loss or norm that is not finite

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One process trains one model; started several times over by a launcher, every copy would train the same.
void refuse_several_processes() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"})
        if (const char* size = std::getenv(name); size && std::atoi(size) > 1)
            fail("the world size (" + std::string(name) + ")", size, "1: this version trains with one process", "start it with mpirun -np 1, or without a launcher");
}

Context open_context(const Options& options) {
    const auto bf16 = options.bf16_arithmetic == "native"  ? kernels::Bf16Arithmetic::native
                      : options.bf16_arithmetic == "widen" ? kernels::Bf16Arithmetic::widen
                                                           : kernels::Bf16Arithmetic::measure;
    DeviceInfo device = open_device(int(options.threads), int(options.device));
    return {std::move(device), DeviceStream(), kernels::Matmul({.tf32 = options.tf32, .bf16 = bf16})};
}

// The shards, and what they say of their tokens. Validation shards are optional.
struct Data {
    std::optional<ShardSet> train, val;
    Vocabulary vocabulary() const { return train ? train->vocabulary() : val->vocabulary(); }
};

Data open_data(const Options& options) {
    Data data;
    if (!options.train_data.empty()) data.train.emplace(options.train_data);
    if (!options.val_data.empty()) data.val.emplace(options.val_data);
    if (data.train && data.val && data.train->vocabulary() != data.val->vocabulary())
        fail("the vocabulary of " + options.val_data, data.val->vocabulary().size, "that of " + options.train_data + ", " + std::to_string(data.train->vocabulary().size),
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
    require(start.config.vocabulary >= vocabulary.size, "the vocabulary of --init " + options.init, start.config.vocabulary,
            "at least that of the shards, " + std::to_string(vocabulary.size), "use shards made for this model, or another --init");
    require(options.seq_len <= start.config.max_seq_len, "--seq-len", options.seq_len, "at most the model's " + std::to_string(start.config.max_seq_len) + " positions",
            "make it smaller, or train a model with more positions (custom:...,t=N)");
    return start;
}

std::vector<float> initial_weights(const Start& start, const ParameterTable& table, std::uint64_t seed) {
    std::vector<float> weights(std::size_t(table.elements()));
    if (start.checkpoint) start.checkpoint->read(table, weights);
    else table.initialise(weights, seed);
    return weights;
}

AdamWSettings adamw_settings(const Options& o) {
    return {.beta1 = float(o.beta1), .beta2 = float(o.beta2), .eps = float(o.eps), .weight_decay = float(o.weight_decay), .max_grad_norm = float(o.grad_clip)};
}

std::string describe_shards(const char* what, const ShardSet& shards) {
    return std::string(what) + ": " + std::to_string(shards.size()) + (shards.size() == 1 ? " shard, " : " shards, ") + std::to_string(shards.tokens()) +
           " tokens, vocabulary " + std::to_string(shards.vocabulary().size) + '\n';
}

// Mean loss in nats over the first tokens of the validation shards.
struct Validation {
    ValidationBatches batches;
    DeviceArray<double> loss_sum{1};

    double loss(Model& model, BatchUpload& upload, MicroBatchShape shape, Context& context) {
        loss_sum.zero(context.stream);
        for (std::int64_t i = 0; i < batches.size(); ++i) {
            const Batch& batch = batches[i];
            model.evaluate(upload.upload(batch.inputs, batch.targets, shape, false), loss_sum.span());
        }
        return loss_sum.download(context.stream)[0] / double(batches.targets());
    }
};

// What samples go on from: every document begins with an end of text.
std::vector<int> sample_start(const Options& options, const Tokenizer& tokenizer) {
    std::vector<int> start{tokenizer.vocabulary().end_of_text};
    if (!options.prompt.empty())
        for (int id : tokenizer.encode(options.prompt)) start.push_back(id);
    return start;
}

void draw_samples(const Options& options, Model& model, const Tokenizer& tokenizer, const std::vector<int>& start, std::int64_t step, Report& report) {
    const int end_of_text = tokenizer.vocabulary().end_of_text;
    for (std::int64_t i = 0; i < options.samples; ++i) {
        Sampler sampler(std::uint64_t(options.seed) * 1000003 + std::uint64_t(i), int(options.top_k), options.temperature);
        auto tokens = sample_tokens(sampler, start, int(options.sample_tokens), int(options.seq_len), end_of_text,
                                    [&](std::span<const int> seen) { return model.logits(seen, int(seen.size()) - 1, 1); });
        if (tokens.back() == end_of_text) tokens.pop_back();
        report.sample(step, printable(tokenizer.decode(std::span<const int>(tokens).subspan(1))));
    }
}

int run(const Options& options) {
    const Interrupt interrupt;
    refuse_several_processes();
    Context context = open_context(options);
    const Data data = open_data(options);
    const Start start = starting_point(options, data.vocabulary());
    const auto tokenizer = tokenizer_for({start.config.vocabulary, data.vocabulary().end_of_text});

    const std::vector<int> prompt = sample_start(options, *tokenizer);

    const MicroBatchShape shape{int(options.micro_batch), int(options.seq_len)};
    const ModelSetup setup{.config = start.config, .dtype = options.dtype == "bf16" ? kernels::DType::bf16 : kernels::DType::fp32, .shape = shape,
                           .recompute = recompute_by_name(options.recompute), .training = !options.eval_only};
    const std::int64_t micro_batch_tokens = std::int64_t(shape.rows());
    const std::int64_t step_tokens = options.total_batch_tokens > 0 ? options.total_batch_tokens : micro_batch_tokens;  // K: positions of one update
    const int micro_batches = int(step_tokens / micro_batch_tokens);

    const BatchShape batch_shape{.micro_batch = shape.batch, .seq_len = shape.seq_len};
    std::optional<DataLoader> loader;
    if (!options.eval_only)
        loader.emplace(*data.train, DataLoaderOptions{.shape = batch_shape, .micro_batches = micro_batches,
                                                      .shuffle_seed = options.shuffle ? std::optional(std::uint64_t(options.seed)) : std::nullopt});
    std::optional<Validation> validation;
    if (data.val) validation.emplace(ValidationBatches(*data.val, options.val_tokens, batch_shape));
    const std::int64_t total_steps = options.eval_only ? 0 : options.max_steps > 0 ? options.max_steps : loader->steps_in(options.epochs);

    const MemoryPlan plan = plan_memory(setup, context);
    std::cout << version_text() << "device: " << context.device.name << ", " << context.device.threads << " threads\nmatrix library: " << context.matmul.describe()
              << "\noptions: " << to_json(options).dump() << '\n';
    if (data.train) std::cout << describe_shards("training data", *data.train);
    if (loader) std::cout << "  " << loader->dropped_tokens() << " tokens an epoch are left over\n";
    if (data.val) std::cout << describe_shards("validation data", *data.val);
    if (validation && validation->batches.all_there_is()) std::cout << "  all " << validation->batches.targets() << " targets are used: fewer than --val-tokens\n";
    const ParameterTable table(start.config);
    std::cout << "model: " << describe(start.config) << ", " << table.parameters() << " parameters (" << table.decayed().elements << " decayed in "
              << table.decayed().tensors << " tensors, " << table.not_decayed().elements << " not in " << table.not_decayed().tensors << ")\n";
    if (!options.eval_only)
        std::cout << "training: " << total_steps << " steps of " << step_tokens << " tokens, " << micro_batches << " micro-batches each\n";
    std::cout << plan.text() << std::flush;
    require_room(plan, setup, context);
    if (options.dry_run) return 0;

    Report report(options.output_dir, total_steps);
    if (options.output_dir.empty()) std::cout << "no --output-dir: neither log nor model will be kept\n";
    report.start({{"event", "start"}, {"version", version_json()}, {"options", to_json(options)}, {"device", context.device.name},
                  {"threads", context.device.threads}, {"matmul", context.matmul.describe()}, {"model", describe(start.config)},
                  {"parameters", table.parameters()}, {"total_steps", total_steps}, {"tokens_per_step", step_tokens}, {"planned_bytes", plan.total()}});

    const auto model = make_model(setup, context);
    model->load(initial_weights(start, table, std::uint64_t(options.seed)));
    BatchUpload upload(shape, start.config.vocabulary, context);
    const auto validate = [&](std::int64_t step) {
        const double began = seconds_now();
        const double loss = validation->loss(*model, upload, shape, context);
        report.validation(step, loss, validation->batches.targets(), seconds_now() - began);
    };
    if (options.eval_only) {
        validate(0);
        if (options.sample_every > 0) draw_samples(options, *model, *tokenizer, prompt, 0, report);
        return 0;
    }

    Optimizer optimizer(*model, adamw_settings(options), context);
    const Schedule schedule{.kind = lr_schedule_by_name(options.lr_schedule), .peak = options.lr, .final_fraction = options.final_lr_fraction,
                            .warmup_steps = options.warmup_steps, .total_steps = total_steps};
    Throughput throughput(flops_per_token(table, shape.seq_len), peak_flops(context.device, setup.dtype, options.tf32));
    DeviceArray<double> loss_sum(1);
    const float token_weight = float(1.0 / double(step_tokens));  // w of one token in the gradient
    std::vector<Batch> first_step;                                // --overfit-batch: the batches of step 0
    int failed_in_a_row = 0;
    std::string reason = "all steps made";
    const double began = seconds_now();

    // A step is logged when its scalars have come back from the device: at once on a CPU, else while the next step is under way.
    struct Unlogged {
        Report::Step record;
        double began;
    };
    std::optional<Unlogged> unlogged;
    double last_logged = began;
    const auto log_step = [&](int steps_back) {
        if (!unlogged) return;
        Report::Step& record = unlogged->record;
        record.scalars = optimizer.scalars(steps_back);
        const double now = seconds_now();
        record.speed = throughput.read(now - std::max(last_logged, unlogged->began), step_tokens, record.scalars.valid_targets);
        record.seconds_left = throughput.seconds_left(total_steps - record.step - 1);
        last_logged = now;
        report.step(record);
        failed_in_a_row = record.scalars.skip == kernels::kSkipNonFinite ? failed_in_a_row + 1 : 0;
        if (failed_in_a_row == kMostFailedSteps)
            fail("the loss", record.scalars.loss, "a finite number within " + std::to_string(kMostFailedSteps) + " steps",
                 "try a lower --lr or a longer --warmup-steps", Blame::runtime);
        unlogged.reset();
    };

    std::int64_t step = 0;
    for (;; ++step) {
        // Between two updates: is this the end, and what is due?
        const bool out_of_time = options.max_minutes > 0 && seconds_now() - began >= options.max_minutes * 60;
        const bool interrupted = interrupt.requested();
        if (interrupted) reason = "interrupted";
        else if (out_of_time) reason = "out of time (--max-minutes)";
        const bool last = interrupted || out_of_time || step == total_steps;
        const auto due = [&](std::int64_t every, bool at_start) { return every > 0 && (last || (step % every == 0 && (at_start || step > 0))); };
        const bool validation_due = validation && due(options.val_every, true) && !interrupted, sample_due = due(options.sample_every, false) && !interrupted;
        const bool checkpoint_due = due(options.checkpoint_every, false) || last;
        if (validation_due || sample_due || checkpoint_due) log_step(0);
        if (validation_due) validate(step);
        if (sample_due) draw_samples(options, *model, *tokenizer, prompt, step, report);
        if (!options.output_dir.empty() && checkpoint_due)
            report.checkpoint(step, save_checkpoint(options.output_dir, step, table, [&](int tensor) { return model->master_on_host(tensor); },
                                                    data.vocabulary().end_of_text));
        if (last) break;

        // One update: gradients of all micro-batches add up, each token with the same weight.
        const double step_began = seconds_now();
        loss_sum.zero(context.stream);
        std::int64_t valid_targets = 0, epoch = 0;
        for (int micro = 0; micro < micro_batches; ++micro) {
            if (options.overfit_batch && std::ssize(first_step) <= micro) first_step.push_back(loader->next());
            const Batch& batch = options.overfit_batch ? first_step[std::size_t(micro)] : loader->next();
            valid_targets += batch.valid_targets;
            epoch = batch.from.epoch;
            model->forward_backward(upload.upload(batch.inputs, batch.targets, shape, true), token_weight, micro > 0, loss_sum.span());
        }
        optimizer.step(*model, {.learning_rate = float(schedule.learning_rate(step)), .positions = step_tokens, .valid_targets = valid_targets,
                                .loss_sum = loss_sum.span()});

        log_step(1);
        unlogged = {.record = {.step = step, .epoch = epoch, .positions = step_tokens, .tokens_so_far = (step + 1) * step_tokens}, .began = step_began};
        if (optimizer.scalars_ready()) log_step(0);
    }
    report.end(step, reason, seconds_now() - began);
    return interrupt.requested() ? interrupt.exit_code() : 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        Options options;
        switch (parse(argc, argv, options)) {
            case Request::help: std::cout << help_text(); return 0;
            case Request::version: std::cout << version_text(); return 0;
            case Request::run: return run(options);
        }
    } catch (const Error& error) {
        std::cerr << "error: " << error.what() << std::endl;
        return error.blame() == Blame::input ? 2 : 1;
    } catch (const std::exception& error) {
        std::cerr << "error: " << error.what() << std::endl;
    }
    return 1;
}
