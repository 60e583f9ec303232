// bench_matmul.cpp - times the matrix products of a training step of GPT-2 124M, together and each separately, and the
// overhead of a call (other shapes: bench.cpp)
//
// A step is twelve blocks of four layers with bias, GELU in the third, and the head without bias. Every block has its
// own weights, as in training, so that they come from memory; those of a separate product may come from a cache.
// Algorithms are autotuned as in training, or those of a run (--tune-file), and printed at the end. The step excludes
// the bias gradients that LayerNorm sums.
#include <cstdio>
#include <utility>
#include <vector>

#include "dev/bench/bench.h"
#include "dev/tool_main.h"
#include "kernels/base/error.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "kernels/matmul/matmul.h"
#include "kernels/tuning/tuned_algorithms.h"
#include "llmc/base/value_text.h"
#include "llmc/run/start/tune_file.h"

using namespace base;

namespace {

using kernels::bf16;
using kernels::Bf16Arithmetic;
using kernels::Matmul;

constexpr int kBlocks = 12, kWidest = 3072, kVocabulary = 50304;
constexpr std::size_t kBlockWeights = 12 * 768 * 768,
                      kStepWeights = kBlocks * kBlockWeights + std::size_t(768) * kVocabulary;

struct Layer {
    int rows, in, out;
    double flops() const { return 2.0 * rows * in * out; }
    std::size_t weights() const { return std::size_t(in) * out; }
};
// Buffers as large as the largest product, shared by all. Only `pre` is both written and read: results fed back would
// grow without bound, and a GPU multiplies infinities faster than finite numbers.
template <class T> struct Tensors {
    device::Array<T> in, dout, result, pre, weight, bias;
    device::Array<float> dweight, dbias;

    explicit Tensors(std::size_t rows)
        : in(filled(rows * kWidest)),
          dout(filled(rows * kVocabulary)),
          result(rows * kVocabulary),
          pre(filled(rows * kWidest)),
          weight(filled(kStepWeights)),
          bias(filled(kVocabulary)),
          dweight(kStepWeights),
          dbias(kVocabulary) {
        dweight.zero(nullptr);
        dbias.zero(nullptr);
    }
    // Random in [-0.125, 0.125), with a period of kPeriod elements: one core generates them more slowly than a GPU
    // multiplies them.
    static device::Array<T> filled(std::size_t size) {
        std::vector<T> host(std::min(size, kPeriod));
        std::uint32_t state = 1;
        for (T& value : host) {
            state = state * 1664525u + 1013904223u;
            const float x = float(state >> 8) / float(1 << 26) - 0.125f;
            if constexpr (sizeof(T) == 2) value = kernels::bf16_from_float(x);
            else value = x;
        }
        device::Array<T> array(size);
        device::copy_to_device(array.span().data(), host.data(), host.size() * sizeof(T), nullptr);
        for (std::size_t done = host.size(); done < size; done *= 2)
            device::copy_on_device(array.span().data() + done, array.span().data(),
                                   std::min(done, size - done) * sizeof(T), nullptr);
        device::sync(nullptr);
        return array;
    }

private:
    static constexpr std::size_t kPeriod = (1 << 20) - 3;  // prime: nearby rows start with different values
};

template <class T> class Products {
public:
    Products(Matmul& matmul, Tensors<T>& tensors) : matmul_(matmul), tensors_(tensors) {}
    void forward(const Layer& layer, std::size_t weight_at, bool with_bias, bool with_gelu) {
        matmul_.forward<T>({tensors_.result.span(), with_gelu ? tensors_.pre.span() : std::span<T>(),
                            tensors_.in.span(), tensors_.weight.span().subspan(weight_at),
                            with_bias ? tensors_.bias.span() : std::span<T>(), layer.rows, layer.in, layer.out},
                           nullptr);
    }
    void backward_input(const Layer& layer, std::size_t weight_at, bool with_gelu) {
        matmul_.backward_input<T>(
            {tensors_.result.span(), tensors_.dout.span(), tensors_.weight.span().subspan(weight_at),
             with_gelu ? tensors_.pre.span() : std::span<T>(), layer.rows, layer.in, layer.out,
             with_gelu ? tensors_.dbias.span() : std::span<float>()},
            nullptr);
    }
    void backward_weight(const Layer& layer, std::size_t weight_at, bool accumulate) {
        matmul_.backward_weight<T>({tensors_.dweight.span().subspan(weight_at), tensors_.dout.span(),
                                    tensors_.in.span(), layer.rows, layer.in, layer.out, accumulate}, nullptr);
    }

private:
    Matmul& matmul_;
    Tensors<T>& tensors_;
};

struct NamedLayer {
    const char* name;
    Layer layer;
    bool bias, gelu;
};
// The layers of a block, in order, and the head.
std::vector<NamedLayer> layers_of(int rows) {
    return {{"attention in", {rows, 768, 2304}, true, false},
            {"attention out", {rows, 768, 768}, true, false},
            {"MLP in", {rows, 768, 3072}, true, true},
            {"MLP out", {rows, 3072, 768}, true, false},
            {"head", {rows, 768, kVocabulary}, false, false}};
}

// Autotunes the same products as training (Model::choose_products).
template <class T>
void choose(Products<T>& products, const std::vector<NamedLayer>& layers) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const auto& [name, layer, bias, gelu] = layers[i];
        products.forward(layer, 0, bias, gelu);
        products.backward_weight(layer, 0, false);
        products.backward_input(layer, 0, i > 0 && layers[i - 1].gelu);
    }
}

// Every product of one training step of the 124M model, in order.
template <class T>
void time_step(const char* label, Matmul& matmul, Tensors<T>& tensors, int rows, double budget) {
    Products<T> products(matmul, tensors);
    std::vector<NamedLayer> layers = layers_of(rows);
    choose(products, layers);
    const Layer head = layers.back().layer;
    layers.pop_back();
    double flops = 3 * head.flops();
    for (const NamedLayer& named : layers) flops += 3 * kBlocks * named.layer.flops();
    const double seconds = bench::median_seconds([&] {
        for (int block = 0; block < kBlocks; ++block) {
            std::size_t at = block * kBlockWeights;
            for (const auto& [name, layer, bias, gelu] : layers) {
                products.forward(layer, at, bias, gelu);
                at += layer.weights();
            }
        }
        products.forward(head, kBlocks * kBlockWeights, false, false);
        products.backward_input(head, kBlocks * kBlockWeights, false);
        products.backward_weight(head, kBlocks * kBlockWeights, false);
        for (int block = kBlocks; block-- > 0;) {
            std::size_t at = (block + 1) * kBlockWeights;
            for (std::size_t i = layers.size(); i-- > 0;) {
                const Layer& layer = layers[i].layer;
                at -= layer.weights();
                products.backward_weight(layer, at, false);
                products.backward_input(layer, at, i > 0 && layers[i - 1].gelu);
            }
        }
    }, budget, 3);
    std::printf("%-14s all products of one step of 124M at %d rows: %.1f ms, %.0f GFLOP/s; workspace %.1f MB; %s\n",
                label, rows, seconds * 1e3, flops / seconds * 1e-9, matmul.workspace_bytes() * 1e-6,
                matmul.describe(kernels::dtype_of<T>).c_str());
    std::fflush(stdout);
}

// Times each product separately, repeatedly. backward_weight sums over the rows.
template <class T>
void time_each(const char* label, Matmul& matmul, Tensors<T>& tensors, int rows, double budget) {
    Products<T> products(matmul, tensors);
    const std::vector<NamedLayer> layers = layers_of(rows);
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const auto& [name, layer, bias, gelu] = layers[i];
        const bool gelu_before = i > 0 && layers[i - 1].gelu;
        const auto time = [&](auto&& product) { return bench::median_seconds(product, budget / 15, 3); };
        const double times[] = {time([&] { products.forward(layer, 0, bias, gelu); }),
                                time([&] { products.backward_input(layer, 0, gelu_before); }),
                                time([&] { products.backward_weight(layer, 0, false); })};
        std::printf("%-14s %-14s %5d to %5d:", label, name, layer.in, layer.out);
        for (int pass = 0; pass < 3; ++pass)
            std::printf(" %s %.3f ms, %.0f GFLOP/s%s", (const char*[]){"forward", "input", "weight"}[pass],
                        times[pass] * 1e3, layer.flops() / times[pass] * 1e-9, pass < 2 ? ";" : "\n");
        std::fflush(stdout);
    }
}

// The overhead of a call besides the multiplication: 1 x 16 x 16 is 512 flops.
template <class T>
void time_overhead(const char* label, Matmul& matmul, Tensors<T>& tensors) {
    constexpr int kCalls = 1000;
    Products<T> products(matmul, tensors);
    const Layer tiny{1, 16, 16};
    const auto microseconds = [&](auto&& work) {
        return bench::median_seconds([&] { for (int i = 0; i < kCalls; ++i) work(); }, 0.1) * 1e6 / kCalls;
    };
    std::printf("%-14s one tiny call: forward %.2f, backward input %.2f, backward weight %.2f us\n", label,
                microseconds([&] { products.forward(tiny, 0, true, false); }),
                microseconds([&] { products.backward_input(tiny, 0, false); }),
                microseconds([&] { products.backward_weight(tiny, 0, false); }));
}

// The algorithm selected for each product on a GPU, with its time.
void print_choices(const char* label, const kernels::TunedAlgorithms& tuned) {
    for (const auto& [library, chosen] : tuned.used())
        for (const auto& [problem, choice] : chosen)
            std::printf("%-14s %s, %s: %s (%s)\n", label, library.c_str(), problem.c_str(), choice.taken.c_str(),
                        choice.why.c_str());
    for (const std::string& note : tuned.notes()) std::printf("%-14s not timed, %s\n", label, note.c_str());
}

template <class T>
void time_all(const char* label, Bf16Arithmetic how, double budget, int step_rows, kernels::TunedAlgorithms tuned) {
    Matmul matmul({.bf16 = how, .tuned = &tuned});
    Tensors<T> tensors(static_cast<std::size_t>(step_rows));
    time_overhead(label, matmul, tensors);
    time_step(label, matmul, tensors, step_rows, budget);
    time_each(label, matmul, tensors, step_rows, budget);
    print_choices(label, tuned);
}

cxxopts::Options command_line() {
    cxxopts::Options options("bench_matmul", "Times the matrix products of a training step of GPT-2 124M.\n");
    options.custom_help("[OPTION...]");
    options.add_options()
        ("rows", "tokens of the micro-batch", cxxopts::value<int>()->default_value("256"), "N")
        ("dtype", "fp32, bf16 or both", cxxopts::value<std::string>()->default_value("both"), "TYPE")
        ("seconds", "to spend on each figure", cxxopts::value<std::string>()->default_value("0.3"), "S")
        ("tune-file", "a run's autotuned algorithms; only missing ones are timed", cxxopts::value<std::string>(),
         "FILE")
        ("h,help", "print this and stop");
    return options;
}

void run(const cxxopts::ParseResult& given) {
    const double budget = llmc::parse_number("--seconds", given["seconds"].as<std::string>(), 1e-6, 1e6);
    const int step_rows = given["rows"].as<int>();
    const auto& dtype = given["dtype"].as<std::string>();
    require(step_rows >= 1, "--rows", step_rows, "1 or more");
    require(dtype == "fp32" || dtype == "bf16" || dtype == "both", "--dtype", in_quotes(dtype), "fp32, bf16 or both");
    const device::Info device = device::open(0);
    std::printf("%s, %d threads\n", device.name.c_str(), device.threads);
    kernels::TunedAlgorithms tuned;
    tuned.timing = true;
    tuned.cache_bytes = device.cache;
    tuned.load_seconds = device::is_gpu() ? 1 : 0;
    if (given.count("tune-file")) {
        llmc::TuneFile file = llmc::read_tune_file(given["tune-file"].as<std::string>());
        require(file.fault.empty(), "--tune-file", in_quotes(given["tune-file"].as<std::string>()),
                "a file that train_gpt2 wrote: " + file.fault);
        tuned.known = std::move(file.tuned[device.name]);
        std::printf("%zu algorithms from the file\n", kernels::count(tuned.known));
    }
    const auto in_bf16 = [&](const char* label, Bf16Arithmetic how) {
        time_all<bf16>(label, how, budget, step_rows, tuned);
    };
    if (dtype != "bf16") time_all<float>("fp32", Bf16Arithmetic::measure, budget, step_rows, tuned);
    if (dtype == "fp32") return;
    if (device.kind == "cuda") return in_bf16("bf16", Bf16Arithmetic::measure);
    in_bf16("bf16 native", Bf16Arithmetic::native);
    in_bf16("bf16 widened", Bf16Arithmetic::widen);
    in_bf16("bf16 measured", Bf16Arithmetic::measure);
}

}  // namespace

int main(int argc, char** argv) { return tool_main("bench_matmul", command_line(), argc, argv, run); }
