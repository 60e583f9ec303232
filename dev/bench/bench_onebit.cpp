// bench_onebit.cpp - times the 1-bit mean of gradients over ranks (llmc/model/onebit_mean.h) and the all-reduce of the
// same gradients in bf16 and fp32 over the same network
//
// A round times each of these once, from a barrier until the last rank is done:
//
//   1-bit        OnebitMean::exchange() and commit(), as 1-bit Adam calls them: compresses momentum and gradient
//   bf16, fp32   Communicator::all_reduce() bucket by bucket; bf16 converts each bucket before and after, like training
//                with --reduce-dtype bf16
//   compression  the same as "1-bit" without communication: the same kernels, on all ranks concurrently
//
// The optimizer's update is in none of them. Each round times all four, so that a machine or network whose speed varies
// affects all of them; ratios are medians over the rounds. Every time is that of the slowest rank. `bench onebit` times
// each kernel alone.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "dev/bench/bench.h"
#include "dev/tool_main.h"
#include "kernels/gradient_copy.h"
#include "llmc/base/number_text.h"
#include "llmc/comm/agreement.h"
#include "llmc/comm/placement.h"
#include "llmc/model/context.h"
#include "llmc/model/onebit_adam.h"

namespace {

using namespace llmc;
using kernels::bf16;

cxxopts::Options command_line() {
    cxxopts::Options options("bench_onebit", "Times the mean of gradients over ranks at 1 bit per element, and their "
                                             "all-reduces in bf16 and fp32.\n");
    options.custom_help("[OPTION...]      start with mpirun -np R --bind-to none");
    options.add_options()
        ("model", "model of these gradients: d12, gpt3:c768, custom:l=4,h=4,c=128", cxxopts::value<std::string>()
             ->default_value("d12"), "NAME")
        ("elements", "about N gradients instead, most of them in one tensor", cxxopts::value<std::int64_t>(), "N")
        ("rounds", "number of rounds", cxxopts::value<int>()->default_value("5"), "N")
        ("onebit-scale", "which elements share a scale: bucket, tensor, block", cxxopts::value<std::string>()
             ->default_value("bucket"), "NAME")
        ("onebit-space", "what to compress: update or momentum", cxxopts::value<std::string>()
             ->default_value("update"), "NAME")
        ("threads", "CPU threads per rank; 0: all hardware threads of its cores",
         cxxopts::value<int>()->default_value("0"), "N")
        ("json", "print one JSON object instead of the table")
        ("h,help", "print this help and exit; `bench onebit` times each kernel alone");
    return options;
}

// A model with about `elements` parameters, most of them in the token table.
ModelConfig config_of_size(std::int64_t elements) {
    ModelConfig config{.layers = 1, .heads = 1, .channels = 64, .max_seq_len = 64, .vocabulary = 1};
    const std::int64_t least = ParameterTable(config).elements(), most = std::int64_t(1) << 32;
    require(elements >= least && elements <= most, "--elements", elements,
            std::to_string(least) + " to " + std::to_string(most));
    config.vocabulary = int(std::max<std::int64_t>(1, (elements - least) / config.channels + 1));
    check(config);
    return config;
}

// The ranks of another communicator without communication: received data is whatever the buffer holds.
class NoNetwork final : public Communicator {
public:
    explicit NoNetwork(const Communicator& ranks) : Communicator(ranks.rank(), ranks.size(), Place{}) {}
    std::string describe() const override { return "no network"; }
    void wait(device::StreamRef, CommEvent) override {}
    void sync(CommEvent) override {}
    void end_all(bool) noexcept override {}
    void host_reduce(std::span<std::int64_t>, HostReduction) override {}
    std::vector<std::string> host_gather(std::string_view mine) override {
        return std::vector<std::string>(std::size_t(size()), std::string(mine));
    }
    void barrier() override {}
    std::unique_ptr<Communicator> split(int) override {
        return std::make_unique<NoNetwork>(static_cast<const Communicator&>(*this));
    }
    void abort(std::string_view reason, int) override { throw Error(std::string(reason), Blame::runtime); }

private:
    void begin_group(device::StreamRef) override {}
    void enqueue(std::span<const Collective>) override {}
    CommEvent end_group() override { return {}; }
};

struct Measured {
    const char* name;
    std::vector<double> seconds{};
    std::int64_t bytes_sent = 0;  // by this rank, per exchange
};

double median(std::vector<double> values) {
    std::ranges::sort(values);
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}
// Median over the rounds of the ratio of their seconds.
double ratio(const Measured& of, const Measured& to) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < of.seconds.size(); ++i) ratios.push_back(of.seconds[i] / to.seconds[i]);
    return median(ratios);
}

class Averages {
public:
    Averages(const ParameterTable& table, OnebitScale scale, OnebitSpace space, Context& context)
        : context_(context),
          network_(context.world),
          nowhere_(std::make_shared<NoNetwork>(*network_)),
          buckets_(table, {.rank = network_->rank(), .ranks = network_->size()}),
          space_(space),
          gradient_(std::size_t(table.elements())),
          momentum_(gradient_.size()),
          second_moment_(gradient_.size()),
          rounded_(gradient_.size()),
          one_(1),
          mean_(table, {.across = network_.get()}, {.scale = scale}, context),
          alone_(table, {.across = nowhere_.get()}, {.scale = scale}, context) {
        std::vector<float> normal(std::min(gradient_.size(), kPeriod)), scales(normal.size());
        std::mt19937 engine(unsigned(network_->rank()));
        std::normal_distribution<float> of_gradient(0, 1e-3f);
        for (float& x : normal) x = of_gradient(engine);
        for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = normal[i] * normal[i] + 1e-8f;
        const device::SyncIfThrown guard(context.stream);
        pattern_ = {std::span<const float>(normal), context.stream};
        const device::Array<float> squares(std::span<const float>(scales), context.stream);
        repeat(momentum_, pattern_);
        repeat(second_moment_, squares);
        rounded_.zero(context.stream);
        one_.upload(std::vector<float>{1.0f}, context.stream);
        const std::vector<std::uint32_t> all(ceil_div(gradient_.size(), 32), ~0u);
        for (OnebitMean* const mean : {&mean_, &alone_}) mean->set_active(all);
        context.stream.sync();
    }

    // Allocates buffers, opens connections and loads code; one bucket of the all-reduces is enough for that.
    void warm_up() {
        measure([&] { exchange(mean_); }, nullptr);
        measure([&] { exchange(alone_); }, nullptr);
        measure([&] { sum_in_bf16(1); }, nullptr);
        measure([&] { sum_in_fp32(1); }, nullptr);
    }
    void run_round(std::vector<Measured>& all) {
        measure([&] { exchange(mean_); }, &all[0]);
        measure([&] { sum_in_bf16(std::size_t(buckets_.size())); }, &all[1]);
        measure([&] { sum_in_fp32(std::size_t(buckets_.size())); }, &all[2]);
        measure([&] { exchange(alone_); }, &all[3]);
    }
    std::size_t buckets() const { return mean_.buckets().size(); }

private:
    static constexpr std::size_t kPeriod = (1 << 20) - 3;

    void repeat(device::Array<float>& array, const device::Array<float>& pattern) const {
        for (std::size_t first = 0; first < array.size(); first += pattern.size())
            device::copy_on_device(array.span().data() + first, pattern.span().data(),
                                   std::min(pattern.size(), array.size() - first) * sizeof(float), context_.stream);
    }
    // Restores the gradients before each measurement.
    template <class Work> void measure(Work&& work, Measured* into) {
        repeat(gradient_, pattern_);
        const std::int32_t finite = 1;
        for (const OnebitMean* const mean : {&mean_, &alone_})
            device::copy_to_device(mean->finite().data(), &finite, sizeof finite, context_.stream);
        context_.stream.sync();
        network_->barrier();
        const std::int64_t sent = network_->bytes_sent();
        const double began = bench::seconds();
        work();
        context_.stream.sync();
        const double mine = bench::seconds() - began;
        const double slowest = double(network_->host_reduce(std::int64_t(mine * 1e9), HostReduction::max)) * 1e-9;
        if (!into) return;
        into->seconds.push_back(slowest);
        into->bytes_sent = network_->bytes_sent() - sent;
    }

    void exchange(OnebitMean& mean) {
        constexpr float kBeta1 = 0.9f;
        const bool update = space_ == OnebitSpace::update;
        mean.exchange({.values = gradient_.span(), .momentum = momentum_.span(),
                       .second_moment = update ? second_moment_.span() : std::span<float>(),
                       .gradient_scale = one_.span(), .momentum_weight = kBeta1,
                       .gradient_weight = (1 - kBeta1) * float(network_->size()), .eps = 1e-8f});
        mean.commit();
    }
    void sum_in_fp32(std::size_t count) {
        for (const GradientBucket& bucket : first(count))
            all_reduce(bucket.flat.of(gradient_.span()));
        network_->wait(context_.stream, last_);
    }
    void sum_in_bf16(std::size_t count) {
        std::vector<CommEvent> groups;
        for (const GradientBucket& bucket : first(count)) {
            kernels::gradient_copy<bf16, float>({.out = bucket.flat.of(rounded_.span()),
                                                 .in = bucket.flat.of(gradient_.span())}, context_.stream);
            all_reduce(bucket.flat.of(rounded_.span()));
            groups.push_back(last_);
        }
        for (std::size_t i = 0; i < groups.size(); ++i) {
            network_->wait(context_.stream, groups[i]);
            const GradientBucket& bucket = buckets_[int(i)];
            kernels::gradient_copy<float, bf16>({.out = bucket.flat.of(gradient_.span()),
                                                 .in = bucket.flat.of(rounded_.span())}, context_.stream);
        }
    }
    template <class T> void all_reduce(std::span<T> data) {
        network_->group_begin(context_.stream);
        network_->all_reduce(data);
        last_ = network_->group_end();
    }
    std::span<const GradientBucket> first(std::size_t count) const { return std::span(buckets_.all()).first(count); }

    Context& context_;
    std::shared_ptr<Communicator> network_, nowhere_;
    GradientBuckets buckets_;
    OnebitSpace space_;
    device::Array<float> gradient_, momentum_, second_moment_, pattern_;
    device::Array<bf16> rounded_;
    device::Array<float> one_;
    OnebitMean mean_;
    OnebitMean alone_;  // mean_ without communication
    CommEvent last_{};
};

void print_table(const std::vector<Measured>& all) {
    std::printf("%-12s %10s %10s %10s %14s %10s\n", "", "median s", "least", "most", "bytes sent", "1-bit / it");
    for (const Measured& one : all) {
        const auto [least, most] = std::ranges::minmax(one.seconds);
        std::printf("%-12s %10.4f %10.4f %10.4f %14lld %10.3f\n", one.name, median(one.seconds), least, most,
                    (long long)one.bytes_sent, ratio(all.front(), one));
    }
}

void run(const cxxopts::ParseResult& given) {
    require(!given.count("model") || !given.count("elements"), "--elements", "set together with --model",
            "only one of the two");
    const ModelConfig config = given.count("elements") ? config_of_size(given["elements"].as<std::int64_t>())
                                                       : model_by_name(given["model"].as<std::string>(), 50257).config;
    const int rounds = given["rounds"].as<int>(), threads = given["threads"].as<int>();
    require(rounds >= 1, "--rounds", rounds, "1 or more");
    require(threads >= 0, "--threads", threads, "0 or more");
    const auto scale = value_by_name("--onebit-scale", given["onebit-scale"].as<std::string>(), kOnebitScales);
    const auto space = value_by_name("--onebit-space", given["onebit-space"].as<std::string>(), kOnebitSpaces);
    const int processes = launched_processes().processes;
    require(processes > 1, "the number of ranks", processes, "2 or more",
            "start it with mpirun -np 2 --bind-to none bench_onebit");

    std::shared_ptr<Communicator> communicator = open_communicator();
    std::string options;
    for (const auto& argument : given.arguments()) options += argument.key() + " = " + argument.value() + "\n";
    require_same(*communicator, {{.name = "the options", .value = options}},
                 "start all ranks with the same options");
    Placement placement = place_rank(*communicator, threads, 0, Transport::automatic);
    if (placement.nccl) communicator = over_nccl(communicator);
    Context context{.device = std::move(placement.device), .stream = {}, .matmul = kernels::Matmul(),
                    .world = communicator};
    const ParameterTable table(config);
    std::vector<Measured> all{{"1-bit"}, {"bf16"}, {"fp32"}, {"compression"}};
    Averages averages(table, scale, space, context);
    averages.warm_up();
    for (int round = 0; round < rounds; ++round) averages.run_round(all);
    if (communicator->rank() > 0) return;

    const std::string machine =
        context.device.name + ", " + llmc::counted(context.device.threads, "thread") + " per rank";
    if (!given["json"].as<bool>()) {
        std::printf("%lld elements, %zu buckets of the 1-bit mean; %s; %s\n", (long long)table.elements(),
                    averages.buckets(), communicator->describe().c_str(), machine.c_str());
        print_table(all);
        return;
    }
    nlohmann::ordered_json json{{"elements", table.elements()}, {"ranks", communicator->size()},
                                {"transport", communicator->describe()}, {"machine", machine}, {"rounds", rounds}};
    for (const Measured& one : all)
        json[one.name] = {{"seconds", one.seconds}, {"median", median(one.seconds)}, {"bytes_sent", one.bytes_sent},
                          {"onebit_ratio", ratio(all.front(), one)}};
    std::cout << json.dump() << '\n';
}

}  // namespace

int main(int argc, char** argv) { return tool_main("bench_onebit", command_line(), argc, argv, run); }
