// onebit_test.cpp - the layout of messages at 1 bit per element, the verdict of an exchange, and the largest update of
// 1-bit Adam (each kernel: operations/onebit*.cpp; whole means: llmc/model/onebit_mean_ranks_test.cpp)
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
