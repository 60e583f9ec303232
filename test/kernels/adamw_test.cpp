// adamw_test.cpp - weight decay by segment, skipped steps, and rejected inputs (the rest: operations/adamw.cpp)
#include "kernels/adamw.h"
#include "kernels/device/memory.h"
#include "kernels/grad_norm.h"
#include "test/support/support.h"

using namespace kernels;
using namespace test;

namespace {

constexpr float kBeta1 = 0.9f, kBeta2 = 0.95f, kEps = 1e-8f, kWeightDecay = 0.1f;

// Segments of at least 16 elements, every second one with decay; some longer than a block's tile, and ends inside
// tiles.
std::vector<DecaySegment> segments_of(std::int64_t elements) {
    std::vector<DecaySegment> segments;
    const std::int64_t lengths[] = {16, 32, 4096, 16, 16, 4080, 20000, 48, 1024};
    std::int64_t end = 0;
    for (int i = 0; end < elements; ++i)
        segments.push_back({end = std::min(elements, end + lengths[i % 9]), i % 2 == 0});
    return segments;
}
bool decays(const std::vector<DecaySegment>& segments, std::int64_t element) {
    for (const DecaySegment& s : segments)
        if (element < s.end) return s.decays;
    FAIL("element " << element << " lies in no segment");
    return false;
}

StepScalars scalars_of(std::int64_t step, float grad_scale, int skip = kNoSkip) {
    StepScalars s{};
    s.adam_step = step;
    s.learning_rate = 6e-4f / float(step);
    s.grad_scale = grad_scale;
    s.first_correction = float(1 / (1 - std::pow(double(kBeta1), double(step))));
    s.second_correction = float(1 / (1 - std::pow(double(kBeta2), double(step))));
    s.skip = skip;
    return s;
}

// The optimizer's arrays on the device.
template <class T> struct State {
    std::vector<DecaySegment> segments;
    device::Array<float> master, m, v;
    device::Array<T> parameter;  // unused in fp32, where the parameter is the master weight
    device::Array<DecaySegment> device_segments;

    explicit State(const std::vector<float>& initial)
        : segments(segments_of(std::int64_t(initial.size()))),
          master(on_device(initial)),
          m(initial.size()),
          v(initial.size()),
          parameter(poisoned<T>(initial.size())),
          device_segments(on_device(segments)) {
        m.zero(nullptr);
        v.zero(nullptr);
    }
    std::span<T> parameters() {
        if constexpr (std::is_same_v<T, float>) return master.span();
        else return parameter.span();
    }
    void update(const std::vector<float>& grad, const StepScalars& step, const Rounding& rounding = {}) {
        const auto device_grad = on_device(grad);
        const auto device_step = on_device(std::vector<StepScalars>{step});
        adamw<T>({parameters(), master.span(), m.span(), v.span(), device_grad.span(), device_segments.span(),
                  device_step.span(), kBeta1, kBeta2, kEps, kWeightDecay, rounding}, nullptr);
        device::sync(nullptr);
    }
    // All state that the optimizer may change, as bytes.
    std::vector<unsigned char> bytes() {
        std::vector<unsigned char> all;
        auto append = [&all](const auto& values) {
            const auto* first = reinterpret_cast<const unsigned char*>(values.data());
            all.insert(all.end(), first, first + values.size() * sizeof(values[0]));
        };
        append(master.download(nullptr));
        append(m.download(nullptr));
        append(v.download(nullptr));
        append(parameter.download(nullptr));
        return all;
    }
};

}  // namespace

TEMPLATE_TEST_CASE("weight decay stops and starts with its segments", "[adamw][one_order]", float, bf16) {
    constexpr std::size_t kElements = 60000;
    const std::vector<float> initial(kElements, 0.75f);
    State<TestType> state(initial);
    const StepScalars scalars = scalars_of(1, 1.0f);
    state.update(std::vector<float>(kElements, 0.0f), scalars);
    const auto master = state.master.download(nullptr);
    const double decayed = 0.75 - double(scalars.learning_rate) * kWeightDecay * 0.75;
    int wrong = 0, decaying = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
        const bool on = decays(state.segments, std::int64_t(i));
        decaying += on;
        wrong += on ? !(std::fabs(master[i] - decayed) <= ulp<float>(decayed) && master[i] != 0.75f)
                    : master[i] != 0.75f;
    }
    CHECK(wrong == 0);
    CHECK(decaying > 1000);
    CHECK(decaying < int(kElements) - 1000);
}

TEMPLATE_TEST_CASE("a skipped step changes nothing", "[adamw][one_order]", float, bf16) {
    constexpr std::size_t kElements = 5008;
    State<TestType> state(normal<float>(kElements, 1));
    state.update(normal<float>(kElements, 2), scalars_of(1, 1.0f));
    const auto before = state.bytes();
    const auto grad = std::vector<float>(kElements, NAN);
    const int skip = GENERATE(int(kSkipNoTargets), int(kSkipNonFinite), int(kSkipOutlier));
    state.update(grad, scalars_of(2, 1.0f, skip));
    CHECK(state.bytes() == before);
}

TEST_CASE("the parameters are bit-identical to the rounded master weights", "[adamw][one_order]") {
    const std::size_t elements = GENERATE(16, 4096, 4112, 70000);
    const Rounding rounding{.stochastic = GENERATE(false, true), .seed = 5, .first_element = 48};
    const auto initial = normal<float>(elements, 1, 0.02);
    State<bf16> state(initial), nearest(initial);
    for (const int step : {1, 2}) {
        const auto grad = normal<float>(elements, 100 + step, 0.01);
        state.update(grad, scalars_of(step, 1.0f), rounding);
        nearest.update(grad, scalars_of(step, 1.0f));
    }
    CHECK(same_bits(state.master.download(nullptr), nearest.master.download(nullptr)));
    const auto want = poisoned<bf16>(elements);
    const auto step = on_device(std::vector<StepScalars>{scalars_of(2, 1.0f)});
    round_parameters({want.span(), state.master.span(), step.span(), rounding}, nullptr);
    CHECK(same_bits(state.parameter.download(nullptr), want.download(nullptr)));
}

TEST_CASE("adamw rejects invalid inputs", "[adamw][one_order]") {
    device::Array<float> master(32), m(32), v(32), grad(32);
    device::Array<bf16> parameter(32);
    device::Array<DecaySegment> segments(1);
    device::Array<StepScalars> scalars(1);
    AdamW<bf16> good{parameter.span(), master.span(), m.span(), v.span(), grad.span(), segments.span(), scalars.span(),
                     kBeta1, kBeta2, kEps, kWeightDecay};
    const auto run = [](const AdamW<bf16>& op) { adamw(op, nullptr); };
    const char* const said = "size of parameter, m, v or grad";
    check_sizes(good, run, std::pair(said, &AdamW<bf16>::parameter), std::pair(said, &AdamW<bf16>::m),
                std::pair(said, &AdamW<bf16>::v), std::pair(said, &AdamW<bf16>::grad));
    auto odd = good, no_segments = good, no_scalars = good;
    odd.master = odd.master.first(24);
    CHECK_THROWS_WITH(run(odd), Contains("number of elements is 24; expected a multiple of 16"));
    no_segments.segments = {};
    CHECK_THROWS_WITH(run(no_segments), Contains("segments is 0"));
    no_scalars.scalars = {};
    CHECK_THROWS_WITH(run(no_scalars), Contains("scalars is 0"));
    AdamW<float> apart{grad.span(), master.span(), m.span(), v.span(), grad.span(), segments.span(), scalars.span(),
                       kBeta1, kBeta2, kEps, kWeightDecay};
    CHECK_THROWS_WITH(adamw(apart, nullptr), test::Contains("expected master itself"));
}
