// onebit_test.cpp - the layout of messages at 1 bit per element, the verdict of an exchange, and what 1-bit Adam
// computes beside its update (each kernel: operations/onebit*.cpp; whole means: llmc/model/onebit_mean_ranks_test.cpp)
#include "kernels/onebit.h"

#include "kernels/onebit_adam.h"
#include "test/support/support.h"

using namespace kernels;

TEST_CASE("chunks are of equal length and a multiple of the alignment", "[kernels][onebit]") {
    for (const auto& [size, count, padded] :
         {std::tuple(1, 1, 8), {17, 2, 32}, {768, 3, 768}, {768, 16, 768}, {124475904, 64, 124475904}})
        CHECK(onebit_layout(size, count, 8).padded() == padded);
    CHECK(onebit_layout(1, 3).padded() == 384);
}

TEST_CASE("one verdict of many ends an exchange", "[kernels][onebit]") {
    std::vector<std::int32_t> verdicts(300, 1);
    const auto agree = [&](std::int32_t own) {
        const auto all = test::on_device(verdicts), finite = test::on_device(std::vector{own});
        onebit_agree({.verdicts = all.span(), .finite = finite.span()}, nullptr);
        return finite.download(nullptr)[0];
    };
    CHECK(agree(1) == 1);
    CHECK(agree(0) == 0);
    verdicts[299] = 0;
    CHECK(agree(1) == 0);
}

TEST_CASE("the largest update of a step is that of any tile", "[kernels][onebit]") {
    const auto scalars = test::on_device(std::vector<StepScalars>(1));
    std::vector<float> of_tiles(700, 0.5f);
    of_tiles[GENERATE(0u, 300u, 699u)] = 2;
    const auto largest = test::on_device(of_tiles);
    onebit_largest(scalars.span(), largest.span(), nullptr);
    CHECK(scalars.download(nullptr)[0].largest_update == 2);
}

TEST_CASE("the slow second moment follows its recurrence", "[kernels][onebit]") {
    const std::size_t size = GENERATE(16, 4096 + 48, 30000);
    const float beta = 0.999f;
    const auto scalars = test::on_device(std::vector{StepScalars{.grad_scale = 0.5f}});
    const auto shadow = test::on_device(std::vector<float>(size));
    std::vector<double> want(size);
    for (unsigned t = 0; t < 3; ++t) {
        const std::vector<float> gradient = test::normal<float>(size, t);
        const auto grad = test::on_device(gradient);
        shadow_moment({.shadow = shadow.span(), .grad = grad.span(), .scalars = scalars.span(), .beta = beta},
                      nullptr);
        for (std::size_t i = 0; i < size; ++i)
            want[i] = double(beta) * want[i] + (1 - double(beta)) * std::pow(0.5 * double(gradient[i]), 2);
    }
    const std::vector<float> got = shadow.download(nullptr);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < size; ++i) wrong += !(std::fabs(double(got[i]) - want[i]) <= 1e-5 * want[i]);
    CHECK(wrong == 0);
}

TEST_CASE("AdamW does not change a frozen second moment, and masks elements where it is 0", "[kernels][onebit]") {
    const auto weights = test::normal<float>(64, 1), moments = test::normal<float>(64, 2);
    std::vector<float> second(64, 4.0f);
    second[7] = second[40] = 0;
    const auto master = test::on_device(weights), m = test::on_device(moments), v = test::on_device(second);
    const auto grad = test::on_device(std::vector<float>(64, 1.0f));
    const auto segments = test::on_device(std::vector<DecaySegment>{{64, 0}});
    const auto scalars = test::on_device(std::vector{
        StepScalars{.learning_rate = 0.01f, .grad_scale = 1, .first_correction = 1.5f, .second_correction = 3}});
    adamw<float>({.parameter = master.span(), .master = master.span(), .m = m.span(), .v = v.span(),
                  .grad = grad.span(), .segments = segments.span(), .scalars = scalars.span(), .beta1 = 0.9f,
                  .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .frozen = true}, nullptr);
    CHECK(test::same_bits(v.download(nullptr), second));
    const std::vector<float> got_m = m.download(nullptr), got = master.download(nullptr);
    for (std::size_t i = 0; i < 64; ++i) {
        const double moment = second[i] == 0 ? 0 : 0.9 * double(moments[i]) + 0.1;
        CHECK(double(got_m[i]) == Approx(moment).margin(1e-6));
        CHECK(double(got[i]) == Approx(double(weights[i]) - 0.01 * moment * 1.5 / 2).margin(1e-6));
    }
}
