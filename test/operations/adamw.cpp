// adamw.cpp - one update by AdamW
#include "kernels/adamw.h"

#include <optional>

#include "kernels/grad_norm.h"
#include "test/operations/operation.h"

namespace operations {
namespace {

using kernels::DecaySegment;
using kernels::StepScalars;

constexpr float kBeta1 = 0.9f, kBeta2 = 0.95f, kEps = 1e-8f, kWeightDecay = 0.1f;

// Stretches of 16 and more elements that decay in turn; longer than the tile of a block, and with ends inside tiles.
std::vector<DecaySegment> segments_of(std::int64_t elements) {
    std::vector<DecaySegment> segments;
    const std::int64_t lengths[] = {16, 32, 4096, 16, 16, 4080, 20000, 48, 1024};
    const std::int64_t least = elements / 1600 * 16;  // a hundred or so at most
    std::int64_t end = 0;
    for (int i = 0; end < elements; ++i) segments.push_back({end = std::min(elements, end + std::max(least, lengths[i % 9])), i % 2 == 0});
    return segments;
}

StepScalars scalars_of(int step) {
    StepScalars s{};
    s.adam_step = step;
    s.learning_rate = 6e-4f;
    s.grad_scale = step == 3 ? 0.37f : 1.0f;
    s.first_correction = float(1 / (1 - std::pow(double(kBeta1), step)));
    s.second_correction = float(1 / (1 - std::pow(double(kBeta2), step)));
    return s;
}

template <class T>
struct AdamW : Operation {
    int elements;
    StepScalars step;
    std::vector<DecaySegment> segments;
    Tensor<float> master, m, v, grad;
    std::optional<Tensor<T>> parameter;  // none in fp32, where it is the master
    llmc::DeviceArray<StepScalars> device_step;
    llmc::DeviceArray<DecaySegment> device_segments;

    explicit AdamW(const Shape& s)
        : elements(s[0]), step(scalars_of(s[1])), segments(segments_of(elements)), master(in_out<float>("master", elements, {.deviation = 0.02})),
          m(in_out<float>("m", elements, {.deviation = s[1] == 1 ? 0 : 0.01})),
          v(in_out<float>("v", elements, s[1] == 1 ? Fill{.deviation = 0} : Fill{.deviation = 1e-5, .mean = 1e-4})),
          grad(input<float>("grad", elements, {.deviation = 0.01})), device_step(1), device_segments(segments.size()) {
        adjust(grad.number, [](std::size_t i, double x) { return i % 7 == 3 ? 0 : x; });
        if constexpr (sizeof(T) == 2) parameter = output<T>("parameter", elements);
        device_step.upload({&step, 1}, nullptr);
        device_segments.upload(segments, nullptr);
        llmc::wait(nullptr);
        bytes = double(elements) * (sizeof(T) == 2 ? 30 : 28);
    }
    void run(Stream stream) override {
        std::span<T> parameters;
        if constexpr (sizeof(T) == 2) parameters = parameter->span();
        else parameters = master.span();
        kernels::adamw<T>({parameters, master, m, v, grad, device_segments.span(), device_step.span(), kBeta1, kBeta2, kEps, kWeightDecay}, stream);
    }
    template <class V> void formula(V& values) const {
        using N = typename V::Number;
        const auto p = values[master], first = values[m], second = values[v], gradient = values[grad];
        values.each(segments.size(), [&, p, first, second, gradient](std::size_t segment) {
            const N decay = segments[segment].decays ? kWeightDecay : 0;
            const auto update = [&](std::size_t i) {
                const N g = N(gradient[i]) * N(step.grad_scale);
                first[i] = N(kBeta1) * first[i] + (N(1) - N(kBeta1)) * g;
                second[i] = N(kBeta2) * second[i] + (N(1) - N(kBeta2)) * g * g;
                const N direction = first[i] * N(step.first_correction) / (sqrt(second[i] * N(step.second_correction)) + N(kEps));
                p[i] = p[i] - N(step.learning_rate) * (direction + decay * p[i]);
                return p[i];
            };
            std::size_t i = segment ? segments[segment - 1].end : 0;
            if constexpr (sizeof(T) == 2)
                for (const auto out = values[*parameter]; i < std::size_t(segments[segment].end); ++i) out[i] = update(i);
            else
                for (; i < std::size_t(segments[segment].end); ++i) update(i);
        });
    }
};

const Registered adamw({.name = "adamw", .tag = "[adamw]", .dimensions = {"elements", "step"},
                        .edges = with_each({{16}, {4096}, {4112}, {70000 / 16 * 16}, {200000}}, {1, 3, 1000}), .small = {{1 << 24, 10}},
                        .large = {{124475904, 10}}, .make = make<AdamW>});

}  // namespace
}  // namespace operations
