// stochastic_rounding_test.cpp - SplitMix64 compared with its publication, rounding with its definition (the bits of
// every element: operations/adamw.cpp)
#include "kernels/adamw.h"
#include "kernels/device/random.h"
#include "kernels/outer.h"
#include "test/support/support.h"

using namespace kernels;
using namespace test;

TEST_CASE("SplitMix64 gives the published numbers", "[rounding][shuffle][sampler][one_order]") {
    SplitMix64 bits(0);
    for (const std::uint64_t published : {0xe220a8397b1dcdafu, 0x6e789e6aa1b965f4u, 0x06c45d188009454fu})
        CHECK(bits.next() == published);
}

TEST_CASE("the number of noise values that round up equals the fraction of the number",
          "[adamw][one_order][rounding]") {
    for (const float sign : {1.0f, -1.0f})
        // subnormal to largest
        for (const std::uint32_t upper : {0x0000u, 0x0001u, 0x007fu, 0x0080u, 0x3f80u, 0x3fffu, 0x4049u, 0x7f7eu})
            for (const std::uint32_t rest : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0xabcdu, 0xffffu}) {
                const float x = sign * std::bit_cast<float>(upper << 16 | rest);
                CAPTURE(x);
                const std::uint32_t sign_bit = std::bit_cast<std::uint32_t>(x) >> 31 << 15;
                std::uint32_t up = 0, elsewhere = 0;
                for (std::uint32_t noise = 0; noise < 0x10000; ++noise) {
                    const std::uint32_t result = round_stochastically(x, noise).bits;
                    up += result == (sign_bit | (upper + 1));
                    elsewhere += result != (sign_bit | upper) && result != (sign_bit | (upper + 1));
                }
                CHECK(up == rest);
                CHECK(elsewhere == 0);
            }
}

TEST_CASE("numbers beyond the largest finite bf16 are not rounded up", "[adamw][one_order][rounding]") {
    for (const std::uint32_t noise : {0x0000u, 0x0001u, 0x8000u, 0xffffu}) {
        CAPTURE(noise);
        for (const std::uint32_t sign : {0u, 0x80000000u}) {
            const auto result = [&](std::uint32_t magnitude) {
                return round_stochastically(std::bit_cast<float>(sign | magnitude), noise);
            };
            for (const std::uint32_t finite : {0x7f7f0000u, 0x7f7f0001u, 0x7f7fffffu})
                CHECK(result(finite).bits == (sign >> 16 | 0x7f7f));
            CHECK(result(0x7f800000).bits == (sign >> 16 | 0x7f80));
            for (const std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu})
                CHECK(std::isnan(bf16_to_float(result(nan))));
        }
    }
}

TEST_CASE("parameters are rounded after an outer update as after an inner one", "[rounding][outer][one_order]") {
    const std::size_t size = 4099, padded = (size + 15) / 16 * 16;
    const Rounding rounding{.stochastic = true, .seed = 5, .first_element = 48};
    const auto sums = on_device(normal<float>(size, 1, 0.06));
    const auto anchor = on_device(normal<float>(size, 2, 0.02)), momentum = on_device(normal<float>(size, 3, 0.02));
    const auto norm = on_device(std::vector{1.0});
    const auto scalars = on_device(std::vector{StepScalars{.adam_step = 12}});
    const auto master = poisoned<float>(padded);
    const auto parameter = poisoned<bf16>(size), rounded = poisoned<bf16>(padded);
    outer_update<bf16>({parameter.span(), master.span().first(size), anchor.span(), momentum.span(), sums.span(),
                        norm.span(), scalars.span(), 3, 0.7f, 0.6f, rounding}, nullptr);
    round_parameters({rounded.span(), master.span(), scalars.span(), rounding}, nullptr);
    const std::vector<bf16> want = rounded.download(nullptr);
    CHECK(same_bits(parameter.download(nullptr), std::span(want).first(size)));
}
