// adamw.cpp - one AdamW update, and parameters rounded from their master weights: to nearest, or stochastically with
// random bits for each element
#include "kernels/adamw.h"

#include <limits>

#include "kernels/device/memory.h"
#include "kernels/device/random.h"
#include "kernels/grad_norm.h"
#include "test/operations/operation.h"

namespace operations::adamw_operation {
namespace {

using kernels::DecaySegment;
using kernels::Rounding;
using kernels::StepScalars;

constexpr float kBeta1 = 0.9f, kBeta2 = 0.95f, kEps = 1e-8f, kWeightDecay = 0.1f;

// Segments of at least 16 elements, every second one with decay; some longer than a block's tile, and ends inside
// tiles.
std::vector<DecaySegment> segments_of(std::int64_t elements) {
    std::vector<DecaySegment> segments;
    const std::int64_t lengths[] = {16, 32, 4096, 16, 16, 4080, 20000, 48, 1024};
    const std::int64_t least = elements / 1600 * 16;  // at most about a hundred segments
    std::int64_t end = 0;
    for (int i = 0; end < elements; ++i)
        segments.push_back({end = std::min(elements, end + std::max(least, lengths[i % 9])), i % 2 == 0});
    return segments;
}

// Every word of the generator's key and counter is nonzero. `first` is in units of 16 elements, so that an int reaches
// beyond call 2^32.
constexpr std::int64_t kManySteps = std::int64_t(1) << 33;
Rounding stochastic(int first) {
    return {.stochastic = true, .seed = 0xfedcba9876543210, .first_element = std::int64_t(first) * 16};
}

StepScalars scalars_of(int step, const Rounding& rounding) {
    StepScalars s{};
    s.adam_step = rounding.stochastic ? kManySteps + step : step;
    s.learning_rate = 6e-4f;
    s.grad_scale = step == 3 ? 0.37f : 1.0f;
    s.first_correction = float(1 / (1 - std::pow(double(kBeta1), step)));
    s.second_correction = float(1 / (1 - std::pow(double(kBeta2), step)));
    return s;
}

// The bits of one element, as random.h defines them, from a separate call of the generator.
std::uint32_t noise_of(std::uint64_t seed, std::int64_t step, std::int64_t element) {
    const std::int64_t call = element / 32 * 4 + element / 4 % 4;
    kernels::Philox<1> philox{{{std::uint32_t(call)}, {std::uint64_t(call) >> 32}, {std::uint32_t(step)},
                               {std::uint64_t(step) >> 32}}};
    philox.run(seed);
    const std::uint64_t word = philox.lane[element % 4][0];
    return element % 32 < 16 ? word & 0xffff : word >> 16 & 0xffff;
}

// Rounds away from zero if the noise is at least the distance to the next bf16; for finite x below the largest bf16.
double round_with(std::uint32_t noise, double x) {
    const auto bits = std::bit_cast<std::uint32_t>(float(x));
    return widen(bf16{std::uint16_t((bits >> 16) + (noise >= 0x10000 - (bits & 0xffff) ? 1 : 0))});
}

// The parameter for the master weight of element i. If the master weight's tolerance spans a rounding boundary, both
// neighbours are accepted.
template <class V>
typename V::Number rounded_parameter(const V&, const typename V::Number& master, const Rounding& rounding,
                                     std::int64_t step, std::size_t i) {
    if (!rounding.stochastic) return master;
    const std::uint32_t noise = noise_of(rounding.seed, step, rounding.first_element + std::int64_t(i));
    if constexpr (std::is_same_v<typename V::Number, Rounded>) {
        const double slack = kDeviations * std::sqrt(master.variance);
        const double low = round_with(noise, master.value - slack), high = round_with(noise, master.value + slack);
        return {(low + high) / 2, square((high - low) / 2 / kDeviations)};
    } else {
        return round_with(noise, master);
    }
}

template <class T>
struct AdamW : Operation {
    Rounding rounding;
    int elements = shape[0];
    bool first_step = shape[1] == 1;
    StepScalars step = scalars_of(shape[1], rounding);
    std::vector<DecaySegment> segments = segments_of(elements);
    Tensor<float> master = in_out<float>("master", elements, {.deviation = 0.02});
    Tensor<float> m = in_out<float>("m", elements, {.deviation = first_step ? 0 : 0.01});
    Tensor<float> v = in_out<float>("v", elements, {.deviation = first_step ? 0 : 1e-5, .mean = first_step ? 0 : 1e-4});
    Tensor<float> grad = input<float>("grad", elements, {.deviation = 0.01});
    Tensor<T> parameter = parameter_of<T>(master, Role::output);
    device::Array<StepScalars> device_step{{&step, 1}, nullptr};
    device::Array<DecaySegment> device_segments{segments, nullptr};

    explicit AdamW(const Shape& shape, const Rounding& rounding = {}) : Operation(shape), rounding(rounding) {
        adjust(grad.number, [](std::size_t i, double x) { return i % 7 == 3 ? 0 : x; });
        bytes = double(elements) * (sizeof(T) == 2 ? 30 : 28);
    }
    void run(device::StreamRef stream) override {
        kernels::adamw<T>({parameter, master, m, v, grad, device_segments.span(), device_step.span(), kBeta1, kBeta2,
                           kEps, kWeightDecay, rounding}, stream);
    }
    template <class V> void formula(V& values) const {
        using N = typename V::Number;
        const auto p = values[master], first = values[m], second = values[v], gradient = values[grad];
        values.each(segments.size(), [&, p, first, second, gradient, out = values[parameter]](std::size_t segment) {
            const N decay = segments[segment].decays ? kWeightDecay : 0;
            const auto update = [&](std::size_t i) {
                const N g = N(gradient[i]) * N(step.grad_scale);
                first[i] = N(kBeta1) * first[i] + (N(1) - N(kBeta1)) * g;
                second[i] = N(kBeta2) * second[i] + (N(1) - N(kBeta2)) * g * g;
                const N direction = first[i] * N(step.first_correction) /
                                    (sqrt(second[i] * N(step.second_correction)) + N(kEps));
                p[i] = p[i] - N(step.learning_rate) * (direction + decay * p[i]);
                return p[i];
            };
            const std::size_t begin = segment ? segments[segment - 1].end : 0;
            for (std::size_t i = begin; i < std::size_t(segments[segment].end); ++i)
                out[i] = rounded_parameter(values, update(i), rounding, step.adam_step, i);
        });
    }
};

template <class T>
struct StochasticAdamW : AdamW<T> {
    explicit StochasticAdamW(const Shape& shape) : AdamW<T>(shape, stochastic(shape[2])) {}
};

struct RoundParameters : Operation {
    Rounding rounding = shape[2] ? stochastic(shape[1]) : Rounding{};
    StepScalars step{.adam_step = kManySteps + 7};
    Tensor<float> master = input<float>("master", shape[0], {.deviation = 0.02});
    Tensor<bf16> parameter = output<bf16>("parameter", shape[0]);
    device::Array<StepScalars> device_step{{&step, 1}, nullptr};

    explicit RoundParameters(const Shape& shape) : Operation(shape) { bytes = 6.0 * shape[0]; }
    void run(device::StreamRef stream) override {
        kernels::round_parameters({parameter, master, device_step.span(), rounding}, stream);
    }
    template <class V> void formula(V& v) const {
        v.each(master.storage().size, [&, x = v[master], out = v[parameter]](std::size_t i) {
            out[i] = rounded_parameter(v, typename V::Number(x[i]), rounding, step.adam_step, i);
        });
    }
};

// Whole and partial groups of 32 elements, ranges of 256 and tiles; slices that begin at their boundaries and within
// them, one of them across the generator's call 2^32.
const std::vector<Shape> kElements{{16}, {48}, {272}, {4112}, {40000}};
const std::vector<int> kFirsts{0, 1, 15, std::numeric_limits<int>::max() - 3};

const Registered adamw({.name = "adamw", .tag = "[adamw][one_order]", .dimensions = {"elements", "step"},
                        .edges = with_each({{16}, {4096}, {4112}, {70000 / 16 * 16}, {200000}}, {1, 3, 1000}),
                        .small = {{1 << 24, 10}}, .large = {{124475904, 10}}, .make = make<AdamW>});
const Registered stochastic_adamw({.name = "adamw, stochastic rounding", .tag = "[adamw][rounding][one_order]",
                                   .dimensions = {"elements", "step", "first / 16"},
                                   .edges = with_each(kElements, {3}, kFirsts), .small = {{1 << 24, 10, 0}},
                                   .large = {{124475904, 10, 0}}, .make = make<StochasticAdamW>,
                                   .dtypes = {DType::bf16}});
const Registered round_parameters({.name = "round parameters", .tag = "[rounding][one_order]",
                                   .dimensions = {"elements", "first / 16", "stochastic"},
                                   .edges = with_each(kElements, kFirsts, {0, 1}),
                                   .small = {{1 << 24, 0, 0}, {1 << 24, 0, 1}},
                                   .large = {{124475904, 0, 0}, {124475904, 0, 1}}, .make = make_one<RoundParameters>,
                                   .dtypes = {DType::bf16}});

}  // namespace
}  // namespace operations::adamw_operation
