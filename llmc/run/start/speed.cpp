// speed.cpp - times steps of two small models
#include "llmc/run/start/speed.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "llmc/base/clock.h"
#include "llmc/base/value_text.h"
#include "llmc/comm/agreement.h"
#include "llmc/model/batch_upload.h"
#include "llmc/model/gradient_exchange.h"
#include "llmc/run/log/throughput.h"

namespace llmc {
namespace {

// A small one and one of 0.8 million parameters; on a GPU two that fill it, if that has the memory.
struct Probe {
    int layers, heads, channels, seq_len, batch;
};
constexpr Probe kOnCpu[] = {{2, 2, 64, 256, 8}, {4, 4, 128, 256, 8}};
constexpr Probe kOnGpu[] = {{6, 6, 384, 1024, 16}, {12, 12, 768, 1024, 16}};
constexpr double kSecondsOfEach = 0.6;
constexpr double kFaster = 0.9;  // a time below this part of the stored one replaces it
constexpr std::size_t kMemoryOfBatch = std::size_t(1) << 30;  // of a sequence on a GPU; generous
constexpr double kShareOfPeak = 0.49;  // dev/results/2026-11-28-h200.md: 48.6 % for d12, 49.4 for d24, 53.5 for d48

struct Times {
    double pass, update;  // seconds of a step
};

double longest(Communicator& ranks, double seconds) {
    return 1e-9 * double(ranks.host_reduce(std::llround(1e9 * seconds), HostReduction::max));
}

// The shortest of several steps. Collective.
Times time_steps(const ModelConfig& config, MicroBatchShape shape, kernels::DType dtype, const RunSettings& settings,
                 Context& context) {
    Communicator& ranks = *context.world;
    const ParameterTable table(config);
    OptimizerSettings update = settings.optimizer;
    update.kind = update.kind == &kMuon ? &kMuon : &kAdamW;
    update.outer = {};
    update.rounding_seed.reset();
    RunSettings of_update = settings;
    of_update.optimizer.kind = update.kind;
    update.own = optimizer_settings(of_update, 0, {});
    const ModelSetup setup{.config = config, .dtype = dtype, .shape = shape,
                           .sharding = {.rank = context.worker->rank(), .ranks = context.worker->size(),
                                        .whole_matrices = update.kind->whole_matrices}};
    const auto model = make_model(setup, table, context);
    std::vector<float> weights(std::size_t(table.elements()));
    table.initialise(weights, 1);
    model->load(weights);
    const auto gradients = make_gradient_exchange(table, {.sharding = setup.sharding}, context);
    OptimizerStep optimizer(*model, *gradients, update, context);
    optimizer.round_parameters(*model);
    BatchUpload upload(setup, context);
    std::vector<int> tokens(shape.rows());
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = int(i * 7919 % std::size_t(config.vocabulary));
    const auto positions = std::int64_t(shape.rows()) * setup.sharding.ranks;
    const auto step = [&] {
        context.stream.sync();
        ranks.barrier();
        const double began = seconds_now();
        gradients->begin({.valid_targets = std::int64_t(shape.rows())});
        model->forward_backward(upload.upload(tokens, tokens, shape, Purpose::training), float(1.0 / double(positions)),
                                *gradients);
        context.stream.sync();
        const double passed = seconds_now();
        optimizer.run(*model, {.learning_rate = 1e-4f, .positions = positions});
        context.stream.sync();
        return Times{longest(ranks, passed - began), longest(ranks, seconds_now() - passed)};
    };
    step();  // plans kernels, and touches memory for the first time
    Times least = step();
    const double seconds = least.pass + least.update;
    for (int more = std::clamp(int(kSecondsOfEach / seconds), 0, 20); more > 0; --more) {
        const Times times = step();
        least = {std::min(least.pass, times.pass), std::min(least.update, times.update)};
    }
    return least;
}

// Two non-negative rates, in seconds per unit, whose sums fit two times; of `second` alone if there are none.
std::pair<double, double> solve(const double (&first)[3], const double (&second)[3]) {
    const double determinant = first[0] * second[1] - first[1] * second[0];
    const double a = (first[2] * second[1] - first[1] * second[2]) / determinant,
                 b = (first[0] * second[2] - first[2] * second[0]) / determinant;
    if (a >= 0 && b >= 0) return {a, b};
    return a < 0 ? std::pair(0.0, second[2] / second[1]) : std::pair(second[2] / second[0], 0.0);
}

}  // namespace

Work work_of(const ModelConfig& config, std::int64_t seq_len, bool muon, double pair_share) {
    const ParameterTable table(config);
    const double c = config.channels, layers = config.layers;
    return {.flops = flops_per_token(table, int(seq_len), pair_share),
            .elements = 20 * layers * c + config.padded_vocabulary(),
            .parameters = double(table.parameters()),
            // 5 iterations; of each 4 m^2 n + 2 m^3 for a matrix of m x n, m = c, of n = 3c, c, 4c and 4c
            .orthogonal = muon ? 280 * layers * c * c * c : 0};
}

double Speed::seconds_per_token(const ModelConfig& config, std::int64_t seq_len, std::int64_t tokens,
                                bool muon, double pair_share) const {
    const Work work = work_of(config, seq_len, muon, pair_share);
    return flop * work.flops + element * work.elements +
           (parameter * work.parameters + orthogonal * work.orthogonal) / double(tokens);
}

Speed measure_speed(const RunSettings& settings, int vocabulary, bool confirms, Tuning& tuning, Context& context) {
    const bool gpu = device::is_gpu(), muon = settings.optimizer.kind == &kMuon,
               is_decided = settings.decided.contains("dtype");
    Communicator& ranks = *context.world;
    Probe probes[2];
    std::ranges::copy(gpu ? kOnGpu : kOnCpu, probes);
    const std::size_t fits = std::max<std::size_t>(context.device.memory_available() / kMemoryOfBatch, 1);
    for (Probe& probe : probes)
        while (gpu && std::size_t(probe.batch) > fits) probe.batch /= 2;
    Speed speed{.dtype = is_decided ? settings.precision.dtype
                         : gpu      ? kernels::DType::bf16
                                    : kernels::DType::fp32,
                .source = "measured here"};
    const auto time = [&](const Probe& probe, kernels::DType dtype) {
        const ModelConfig config{probe.layers, probe.heads, probe.channels, probe.seq_len, vocabulary};
        const MicroBatchShape shape{probe.batch, probe.seq_len};
        const std::string problem = describe(config) + ", " + (muon ? "muon" : "adamw") + ", " +
                                    name_of(dtype, kDTypes) + ", " + counted(context.device.threads, "thread") + ", " +
                                    counted(ranks.size(), "rank");
        const auto pass = tuning.speed("pass: " + problem), update = tuning.speed("update: " + problem);
        const auto is_usable = [](const std::optional<double>& seconds) {  // the file may have been edited
            return seconds && *seconds > 1e-7 && *seconds < 1e4;
        };
        const bool is_stored = ranks.host_reduce(is_usable(pass) && is_usable(update) ? 0 : 1, HostReduction::max) == 0;
        Times stored{INFINITY, INFINITY};
        if (is_stored) stored = {longest(ranks, *pass), longest(ranks, *update)};
        if (is_stored && !confirms) return stored;
        const Times times = time_steps(config, shape, dtype, settings, context);
        if (times.pass + times.update > kFaster * (stored.pass + stored.update)) return stored;
        tuning.keep_speed("pass: " + problem, times.pass);
        tuning.keep_speed("update: " + problem, times.update);
        return times;
    };
    Times larger = time(probes[1], speed.dtype);
    if (!is_decided && !gpu) {
        const Times in_bf16 = time(probes[1], kernels::DType::bf16);
        speed.bf16_gain = larger.pass / in_bf16.pass;
        if (speed.bf16_gain > 1.1) speed.dtype = kernels::DType::bf16, larger = in_bf16;
    }
    const Times smaller = time(probes[0], speed.dtype);
    double passes[2][3], updates[2][3];
    for (int i = 0; i < 2; ++i) {
        const Probe& of = probes[i];
        const Work work =
            work_of({of.layers, of.heads, of.channels, of.seq_len, vocabulary}, of.seq_len, muon);
        const Times& times = i == 0 ? smaller : larger;
        const double tokens = double(of.batch) * of.seq_len * ranks.size();
        passes[i][0] = work.flops, passes[i][1] = work.elements, passes[i][2] = times.pass / tokens;
        updates[i][0] = work.orthogonal, updates[i][1] = work.parameters, updates[i][2] = times.update;
    }
    std::tie(speed.flop, speed.element) = solve(passes[0], passes[1]);
    if (muon) std::tie(speed.orthogonal, speed.parameter) = solve(updates[0], updates[1]);
    else speed.parameter = updates[1][2] / updates[1][1];
    return speed;
}

Speed speed_of_model(const RunSettings& settings, const ModelConfig& config) {
    const std::int64_t seq_len = settings.batch.seq_len > 0 ? settings.batch.seq_len : config.max_seq_len;
    const double flops = work_of(config, seq_len, false).flops;
    return {.flop = 1 / (double(settings.dry_run.tokens_per_second) * flops), .dtype = settings.precision.dtype,
            .source = "as --speed says"};
}

Speed speed_of_peak(double tflops, int ranks) {
    return {.flop = 1 / (kShareOfPeak * tflops * 1e12 * ranks), .dtype = kernels::DType::bf16,
            .source = format("an assumption: %.0f %% of the peak, as measured on an H200", 100 * kShareOfPeak)};
}

}  // namespace llmc
