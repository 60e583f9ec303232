// onebit_adam_test.cpp - the update from bits and scales: the specification's run of four steps, and skipped steps (the
// update: operations/onebit_adam.cpp)
#include "kernels/onebit_adam.h"

#include <limits>

#include "test/kernels/onebit_ranks.h"
#include "test/support/support.h"

using namespace kernels;
using namespace test;

namespace {

constexpr float kFirst = 0.9f, kSecond = 0.95f, kTiny = 1e-8f, kDecay = 0.1f, kRate = 0.01f;

// Gradients of two ranks, kInputs, are in the first eight elements of each half of 64.
Floats spread_out(const Floats& values) {
    Floats all(64);
    for (std::size_t i = 0; i < 16; ++i) all[i / 8 * 32 + i % 8] = values[i];
    return all;
}

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

std::pair<double, double> sums(const Floats& all) {
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < all.size(); ++i)
        if (i % 32 < 8) sum += double(all[i]), squares += double(all[i]) * double(all[i]);
    return {sum, squares};
}

}  // namespace

TEST_CASE("two AdamW updates and two 1-bit updates match the specification", "[kernels][onebit]") {
    const bool corrects = GENERATE(false, true);
    CAPTURE(corrects);
    const double want[2][4][2] = {
        {{-.008944273, 3.4006317}, {-.021998249, 3.4154513}, {-.029174037, 3.4403925}, {-.042734457, 3.5043775}},
        {{-.02, 3.4105874}, {-.041447978, 3.4396320}, {-.049699867, 3.4696085}, {-.061989075, 3.5276931}}};
    const std::vector<Floats> &a = kInputs[0], &b = kInputs[1];
    const Floats* const gradients[4][2] = {{&a[0], &a[1]}, {&b[0], &b[1]}, {&a[1], &b[0]}, {&b[1], &a[0]}};
    std::vector<bool> kept(64);
    for (std::size_t i = 0; i < 64; ++i) kept[i] = i % 32 < 8;
    OnebitRanks ranks(64, 2, 32, kept);
    Floats initial(16);
    for (std::size_t i = 0; i < 16; ++i) initial[i] = 0.1f * (float(i) - 7.5f);
    const auto segments = on_device(one_segment(64));
    std::vector<device::Array<float>> master, m;
    for (int rank = 0; rank < 2; ++rank) {
        master.push_back(on_device(spread_out(initial)));
        m.push_back(on_device(Floats(64)));
    }
    auto v = on_device(Floats(64));
    auto largest = poisoned<float>(ranks.plan.tiles.size());
    for (int t = 1; t <= 4; ++t) {
        CAPTURE(t);
        auto scalars = on_device(std::vector{step_of(t, corrects)});
        const Floats zero = spread_out(*gradients[t - 1][0]), one = spread_out(*gradients[t - 1][1]);
        if (t <= 2) {
            Floats mean(64);
            for (std::size_t i = 0; i < 64; ++i) mean[i] = (zero[i] + one[i]) / 2;
            const auto grad = on_device(mean);
            const Floats second = v.download(nullptr);
            for (std::size_t rank = 0; rank < 2; ++rank) {
                v.upload(second, nullptr);
                adamw<float>({.parameter = master[rank].span(), .master = master[rank].span(), .m = m[rank].span(),
                              .v = v.span(), .grad = grad.span(), .segments = segments.span(),
                              .scalars = scalars.span(), .beta1 = kFirst, .beta2 = kSecond, .eps = kTiny,
                              .weight_decay = kDecay}, nullptr);
            }
            if (t == 2) scale_moment(v.span(), v.span(), step_of(2, corrects).second_correction, nullptr);
            device::sync(nullptr);
        } else {
            std::vector<OnebitCompress> inputs(2);
            for (std::size_t rank = 0; rank < 2; ++rank) {
                inputs[rank].momentum = m[rank].span();
                inputs[rank].momentum_weight = kFirst;
                inputs[rank].gradient_weight = 1 - kFirst;
            }
            ranks.exchange({zero, one}, inputs);
            for (std::size_t r = 0; r < 2; ++r) {
                OnebitRanks::Rank& rank = ranks.rank[r];
                onebit_adam<float>({.layout = ranks.plan.layout, .tiles = ranks.tiles.span(),
                                    .compensated = rank.values.span(), .error = rank.error.span(),
                                    .messages = rank.messages.span(), .replies = rank.replies.span(),
                                    .active = ranks.active.span(), .one = true, .parameter = master[r].span(),
                                    .master = master[r].span(), .m = m[r].span(), .v = v.span(),
                                    .largest = largest.span(), .segments = segments.span(),
                                    .scalars = scalars.span(), .eps = kTiny, .weight_decay = kDecay}, nullptr);
                onebit_commit({.layout = ranks.plan.layout, .tiles = ranks.chunk_tiles[r].span(),
                               .sums = rank.sums.span(), .error = rank.server_error.span(),
                               .reply = rank.reply.span(), .finite = rank.finite.span(),
                               .active = ranks.active.span(), .chunk = int(r)}, nullptr);
            }
        }
        const auto [sum, squares] = sums(host(master[0]));
        CHECK(std::fabs(sum - want[corrects][t - 1][0]) <= 2e-6);
        CHECK(std::fabs(squares - want[corrects][t - 1][1]) <= 2e-6);
        CHECK(same_bits(host(master[1]), host(master[0])));
    }
}

TEST_CASE("a skipped step or a non-finite scale changes nothing", "[kernels][onebit]") {
    const bool skipped = GENERATE(false, true);
    CAPTURE(skipped);
    OnebitRanks ranks(64, 2, 32, std::vector<bool>(64, true));
    Floats bad(64, 1.0f);
    if (!skipped) bad[9] = std::numeric_limits<float>::infinity();
    ranks.exchange({Floats(64, 1.0f), bad});
    StepScalars step = step_of(7, true);
    step.skip = skipped ? kSkipOutlier : kNoSkip;
    step.skipped_steps = skipped;
    auto scalars = on_device(std::vector{step});
    OnebitRanks::Rank& rank = ranks.rank[0];
    onebit_admit(rank.finite.span(), scalars.span(), nullptr);
    CHECK(host(rank.finite)[0] == (skipped ? 0 : 1));
    onebit_check_scales({.layout = ranks.plan.layout, .groups = ranks.groups.span(), .replies = rank.replies.span(),
                         .finite = rank.finite.span()}, nullptr);
    onebit_skip_non_finite(scalars.span(), rank.finite.span(), nullptr);
    const StepScalars after = host(scalars)[0];
    CHECK(after.skip == (skipped ? kSkipOutlier : kSkipNonFinite));
    CHECK(after.skipped_steps == 1);
    CHECK(after.adam_step == (skipped ? 7 : 6));
    const auto segments = on_device(one_segment(64));
    const Floats weights = normal<float>(64, 1);
    auto master = on_device(weights), m = on_device(weights), largest = poisoned<float>(ranks.plan.tiles.size());
    const auto v = on_device(Floats(64, 1.0f));
    onebit_adam<float>({.layout = ranks.plan.layout, .tiles = ranks.tiles.span(), .compensated = rank.values.span(),
                        .error = rank.error.span(), .messages = rank.messages.span(), .replies = rank.replies.span(),
                        .active = ranks.active.span(), .one = true, .parameter = master.span(),
                        .master = master.span(), .m = m.span(), .v = v.span(), .largest = largest.span(),
                        .segments = segments.span(), .scalars = scalars.span(), .eps = kTiny, .weight_decay = kDecay},
                       nullptr);
    onebit_commit({.layout = ranks.plan.layout, .tiles = ranks.chunk_tiles[0].span(), .sums = rank.sums.span(),
                   .error = rank.server_error.span(), .reply = rank.reply.span(), .finite = rank.finite.span(),
                   .active = ranks.active.span(), .chunk = 0}, nullptr);
    onebit_largest(scalars.span(), largest.span(), nullptr);
    auto shadow = on_device(weights);
    shadow_moment({.shadow = shadow.span(), .grad = v.span(), .scalars = scalars.span(), .beta = 0.5f}, nullptr);
    for (const auto* const array : {&master, &m, &shadow}) CHECK(same_bits(host(*array), weights));
    CHECK(host(rank.error) == Floats(64, 0.0f));
    CHECK(host(rank.server_error) == Floats(32, 0.0f));
    CHECK(std::isnan(host(scalars)[0].largest_update));
}

TEST_CASE("the largest update of a step is that of any tile", "[kernels][onebit]") {
    auto scalars = on_device(std::vector{step_of(1, true)});
    Floats of_tiles(700, 0.5f);
    const std::size_t place = GENERATE(0, 300, 699);
    of_tiles[place] = 2;
    const auto largest = on_device(of_tiles);
    onebit_largest(scalars.span(), largest.span(), nullptr);
    CHECK(host(scalars)[0].largest_update == 2);
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
    const Floats got = host(shadow), doubled = host(out);
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
    CHECK(same_bits(host(v), second));
    const Floats got_m = host(m), got = host(master);
    for (std::size_t i = 0; i < 64; ++i) {
        const double moment = second[i] == 0 ? 0 : 0.9 * double(moments[i]) + 0.1 * double(gradient[i]);
        CHECK(double(got_m[i]) == Approx(moment).margin(1e-6));
        const double update = 0.01 * moment * double(step.first_correction) / 2;
        CHECK(double(got[i]) == Approx(double(weights[i]) - update).margin(1e-6));
    }
}
