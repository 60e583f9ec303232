// onebit_adam_test.cpp - what 1-bit Adam computes beside its update (operations/onebit_adam.cpp): the largest update,
// the slow second moment, and AdamW with a frozen one
#include "kernels/onebit_adam.h"

#include "test/support/support.h"

using namespace kernels;
using namespace test;

namespace {

using Floats = std::vector<float>;

constexpr float kFirst = 0.9f, kSecond = 0.95f, kTiny = 1e-8f, kDecay = 0.1f, kRate = 0.01f;

StepScalars step_of(std::int64_t t, bool corrects) {
    StepScalars step{};
    step.adam_step = t;
    step.learning_rate = kRate;
    step.grad_scale = 1;
    step.first_correction = corrects ? float(1 / (1 - std::pow(double(kFirst), double(t)))) : 1;
    step.second_correction = corrects ? float(1 / (1 - std::pow(double(kSecond), double(t)))) : 1;
    step.largest_update = NAN;
    return step;
}

std::vector<DecaySegment> one_segment(std::int64_t end, std::int32_t decays = 1) { return {{end, decays}}; }

}  // namespace

TEST_CASE("the largest update of a step is that of any tile", "[kernels][onebit]") {
    auto scalars = on_device(std::vector{step_of(1, true)});
    Floats of_tiles(700, 0.5f);
    const std::size_t place = GENERATE(0, 300, 699);
    of_tiles[place] = 2;
    const auto largest = on_device(of_tiles);
    onebit_largest(scalars.span(), largest.span(), nullptr);
    CHECK(scalars.download(nullptr)[0].largest_update == 2);
}

TEST_CASE("the slow second moment follows its recurrence, and its bias is corrected once", "[kernels][onebit]") {
    const std::size_t size = GENERATE(16, 4096 + 48, 30000);
    auto scalars = on_device(std::vector{step_of(1, true)});
    const float scale = 0.5f, beta = 0.999f;
    StepScalars step = step_of(1, true);
    step.grad_scale = scale;
    scalars.upload(std::span(&step, 1), nullptr);
    device::sync(nullptr);
    auto shadow = on_device(Floats(size));
    std::vector<double> want(size);
    for (unsigned t = 0; t < 3; ++t) {
        const Floats gradient = normal<float>(size, t);
        const auto grad = on_device(gradient);
        shadow_moment({.shadow = shadow.span(), .grad = grad.span(), .scalars = scalars.span(), .beta = beta},
                      nullptr);
        for (std::size_t i = 0; i < size; ++i)
            want[i] = double(beta) * want[i] + (1 - double(beta)) * std::pow(double(scale * gradient[i]), 2);
    }
    auto out = poisoned<float>(size);
    scale_moment(out.span(), shadow.span(), 2.0f, nullptr);
    const Floats got = shadow.download(nullptr), doubled = out.download(nullptr);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < size; ++i)
        wrong += std::fabs(double(got[i]) - want[i]) > 1e-5 * want[i] || doubled[i] != 2 * got[i];
    CHECK(wrong == 0);
}

TEST_CASE("AdamW does not change a frozen second moment, and masks elements where it is 0", "[kernels][onebit]") {
    const Floats weights = normal<float>(64, 1), moments = normal<float>(64, 2), gradient = normal<float>(64, 3);
    Floats second(64, 4.0f);
    second[7] = second[40] = 0;
    auto master = on_device(weights), m = on_device(moments), v = on_device(second);
    const auto grad = on_device(gradient);
    const auto segments = on_device(one_segment(64, 0));
    const StepScalars step = step_of(9, true);
    const auto scalars = on_device(std::vector{step});
    adamw<float>({.parameter = master.span(), .master = master.span(), .m = m.span(), .v = v.span(),
                  .grad = grad.span(), .segments = segments.span(), .scalars = scalars.span(), .beta1 = kFirst,
                  .beta2 = kSecond, .eps = kTiny, .weight_decay = kDecay, .frozen = true}, nullptr);
    CHECK(same_bits(v.download(nullptr), second));
    const Floats got_m = m.download(nullptr), got = master.download(nullptr);
    for (std::size_t i = 0; i < 64; ++i) {
        const double moment = second[i] == 0 ? 0 : 0.9 * double(moments[i]) + 0.1 * double(gradient[i]);
        CHECK(double(got_m[i]) == Approx(moment).margin(1e-6));
        const double update = 0.01 * moment * double(step.first_correction) / 2;
        CHECK(double(got[i]) == Approx(double(weights[i]) - update).margin(1e-6));
    }
}
