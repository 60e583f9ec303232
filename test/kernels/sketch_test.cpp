// sketch_test.cpp - statistics of norms over random signs (the sketch compared with its definition:
// operations/sketch.cpp)
#include "kernels/sketch.h"

#include "test/support/support.h"

using namespace test;
using kernels::kSketchColumns;

namespace {

std::vector<float> sketch_of(const std::vector<float>& values, std::uint32_t draw) {
    const auto in = on_device(values);
    const auto out = poisoned<float>(kSketchColumns), scratch = poisoned<float>(kernels::sketch_scratch());
    kernels::sketch({out.span(), scratch.span(), in.span(), 1.0f, draw}, nullptr);
    return out.download(nullptr);
}

}  // namespace

TEST_CASE("every draw has new signs", "[sketch][one_order]") {
    const auto values = normal<float>(3 * kSketchColumns, 1);
    const auto one = sketch_of(values, 9), other = sketch_of(values, 10);
    int equal = 0;
    for (int j = 0; j < kSketchColumns; ++j) equal += one[j] == other[j];
    // The signs of all three terms of a column are unchanged with probability 1/8; allow 5 standard deviations.
    CHECK(std::abs(equal - kSketchColumns / 8) < 5 * std::sqrt(kSketchColumns * 7 / 64.0));
}
