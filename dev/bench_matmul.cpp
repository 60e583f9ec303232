// bench_matmul.cpp - how fast the matrix products of one whole training step of GPT-2 124M run, and what a call costs
// (single products: bench.cpp)
//
// A step is twelve blocks of four layers with bias, GELU in the third, and the head without. Every block has weights of
// its own, as in training, so that they come from memory.
#include <cstdio>
#include <cstring>
#include <exception>

#include "dev/bench.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "kernels/matmul/matmul.h"

namespace {

using kernels::bf16;
using kernels::Bf16Arithmetic;
using kernels::Matmul;

struct Layer {
    int rows, in, out;
    double flops() const { return 2.0 * rows * in * out; }
};
// What one product reads and writes at most, shared by all of them. Nothing but `pre` is written and read: results fed
// back would grow without bound, and a GPU multiplies infinities faster than numbers.
template <class T> struct Tensors {
    device::Array<T> in, dout, result, pre, weight, bias;
    device::Array<float> dweight, dbias;

    Tensors(std::size_t activations, std::size_t weights, int channels)
        : in(filled(activations)),
          dout(filled(activations)),
          result(activations),
          pre(filled(activations)),
          weight(filled(weights)),
          bias(filled(channels)),
          dweight(weights),
          dbias(channels) {
        dweight.zero(nullptr);
        dbias.zero(nullptr);
    }
    static device::Array<T> filled(std::size_t size) {  // random in [-0.125, 0.125)
        std::vector<T> host(size);
        std::uint32_t state = 1;
        for (T& value : host) {
            state = state * 1664525u + 1013904223u;
            const float x = float(state >> 8) / float(1 << 26) - 0.125f;
            if constexpr (sizeof(T) == 2) value = kernels::bf16_from_float(x);
            else value = x;
        }
        device::Array<T> array(std::span<const T>(host), nullptr);
        device::sync(nullptr);
        return array;
    }
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
             with_gelu ? tensors_.pre.span() : std::span<T>(), layer.rows, layer.in, layer.out},
            nullptr);
    }
    void backward_weight(const Layer& layer, std::size_t weight_at, bool with_bias, bool accumulate) {
        matmul_.backward_weight<T>(
            {tensors_.dweight.span().subspan(weight_at), with_bias ? tensors_.dbias.span() : std::span<float>(),
             tensors_.dout.span(), tensors_.in.span(), layer.rows, layer.in, layer.out, accumulate},
            nullptr);
    }

private:
    Matmul& matmul_;
    Tensors<T>& tensors_;
};

constexpr int kBlocks = 12, kVocabulary = 50304;
constexpr std::size_t kBlockWeights = 12 * 768 * 768,
                      kStepWeights = kBlocks * kBlockWeights + std::size_t(768) * kVocabulary;

// Every product of one training step of the 124M model, in its order.
template <class T>
void time_step(const char* label, Matmul& matmul, Tensors<T>& tensors, int rows, double budget) {
    Products<T> products(matmul, tensors);
    const Layer layers[] = {{rows, 768, 2304}, {rows, 768, 768}, {rows, 768, 3072}, {rows, 3072, 768}};
    const Layer head{rows, 768, kVocabulary};
    double flops = 3 * head.flops();
    for (const Layer& layer : layers) flops += 3 * kBlocks * layer.flops();
    const double seconds = bench::median_seconds([&] {
        for (int block = 0; block < kBlocks; ++block) {
            std::size_t at = block * kBlockWeights;
            for (const Layer& layer : layers) {
                products.forward(layer, at, true, layer.out == 4 * layer.in);
                at += std::size_t(layer.in) * layer.out;
            }
        }
        products.forward(head, kBlocks * kBlockWeights, false, false);
        products.backward_input(head, kBlocks * kBlockWeights, false);
        products.backward_weight(head, kBlocks * kBlockWeights, false, false);
        for (int block = kBlocks; block-- > 0;) {
            std::size_t at = (block + 1) * kBlockWeights;
            for (int i = 4; i-- > 0;) {
                at -= std::size_t(layers[i].in) * layers[i].out;
                products.backward_input(layers[i], at, layers[i].in == 4 * layers[i].out);
                products.backward_weight(layers[i], at, true, false);
            }
        }
    }, budget, 3);
    std::printf("%-14s all products of one step of 124M at %d rows: %.1f ms, %.0f GFLOP/s; workspace %.1f MB; %s\n",
                label, rows, seconds * 1e3, flops / seconds * 1e-9, matmul.workspace_bytes() * 1e-6,
                matmul.describe(kernels::dtype_of<T>).c_str());
    std::fflush(stdout);
}

// What a call costs beside the multiplication itself: 1 x 16 x 16 is 512 flops.
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
                microseconds([&] { products.backward_weight(tiny, 0, false, false); }));
}

template <class T>
void time_all(const char* label, Bf16Arithmetic how, double budget, int step_rows) {
    Matmul matmul({.bf16 = how});
    Tensors<T> tensors(std::size_t(step_rows) * kVocabulary, kStepWeights, kVocabulary);
    time_overhead(label, matmul, tensors);
    time_step(label, matmul, tensors, step_rows, budget);
}

}  // namespace

// bench_matmul [rows=N] [SECONDS]: N rows of the step; SECONDS is what one figure may take.
int main(int argc, char** argv) try {
    double budget = 0.3;
    int step_rows = 256;
    for (int i = 1; i < argc; ++i) {
        if (!std::strncmp(argv[i], "rows=", 5)) step_rows = std::max(1, std::atoi(argv[i] + 5));
        else budget = std::max(0.0, std::atof(argv[i]));
    }
    const device::Info device = device::open(0);
    std::printf("%s, %d threads\n", device.name.c_str(), device.threads);
    time_all<float>("fp32", Bf16Arithmetic::measure, budget, step_rows);
    if (device.kind == "cuda") return time_all<bf16>("bf16", Bf16Arithmetic::measure, budget, step_rows), 0;
    time_all<bf16>("bf16 native", Bf16Arithmetic::native, budget, step_rows);
    time_all<bf16>("bf16 widened", Bf16Arithmetic::widen, budget, step_rows);
    time_all<bf16>("bf16 measured", Bf16Arithmetic::measure, budget, step_rows);
} catch (const std::exception& error) {
    std::fprintf(stderr, "bench_matmul: %s\n", error.what());
    return 1;
}
