// flash_gpu_test.cpp - attention on tensor cores compared with fp64: its error is at most twice the error that its
// roundings to bf16 cause in otherwise exact arithmetic
#include "kernels/attention/flash.h"

#include "kernels/device/memory.h"
#include "test/support/attention_reference.h"
#include "test/support/scratch_folder.h"

using namespace test;
using namespace test::attention;

namespace {

struct Flash {
    static void forward(const AttentionForward<bf16>& op) { kernels::flash_attention_forward(op, nullptr); }
    static void backward(const AttentionBackward<bf16>& op) { kernels::flash_attention_backward(op, nullptr); }
};
using FlashRun = Run<bf16, Flash>;

// Largest and root mean square of errors.
struct Errors {
    double largest = 0, squares = 0;
    int count = 0;
    void add(double error) {
        if (!(error <= largest)) largest = std::isnan(error) ? INFINITY : error;
        squares += error * error;
        ++count;
    }
    double rms() const { return std::sqrt(squares / count); }
};

// Checks part `part` of `parts` of each position, in bands of neighbouring positions of one head, because rows that
// average over many keys have smaller errors. In each band, of the errors beyond the bound of float arithmetic the
// maximum and the root mean square may be twice those of `rounded`, which is exact except for the roundings to bf16.
void check_against_rounded(const std::vector<bf16>& got, const Expected& exact, const Expected& rounded,
                           const Extents& shape, int parts, int part) {
    constexpr int kBand = 32;
    REQUIRE(got.size() == exact.value.size());
    for (int b = 0; b < shape.batch; ++b)
        for (int h = 0; h < shape.heads; ++h)
            for (int first = 0; first < shape.seq_len; first += kBand) {
                Errors mine, allowed;
                for (int t = first; t < std::min(first + kBand, shape.seq_len); ++t)
                    for (int c = 0; c < shape.head_size; ++c) {
                        const std::size_t i = shape.at(b, t, h, parts, part) + c;
                        const double by_float = exact.bound[i] * (1 + 0x1p-8);  // its result may be rounded up
                        mine.add(std::max(0.0, std::fabs(widen(got[i]) - exact.value[i]) - by_float));
                        allowed.add(std::fabs(rounded_to_bf16(rounded.value[i]) - exact.value[i]));
                        if (std::isnan(widen(got[i]))) mine.largest = INFINITY;
                    }
                CAPTURE(part, b, h, first);
                CHECK(mine.largest <= 2 * allowed.largest);
                CHECK(mine.rms() <= 2 * allowed.rms());
            }
}

void check_forward(const FlashRun& run, const FlashRun::Forward& got, const ForwardReference& exact) {
    check_against_rounded(got.out, exact.out, ForwardReference(run.shape, widen(run.qkv), rounded_to_bf16).out,
                          run.shape, 1, 0);
    for (std::size_t row = 0; row < run.shape.rows(); ++row) {
        // no bf16 is involved: float arithmetic, and the rounding of the result to float
        const double want = exact.logsumexp.value[row], allowed = exact.logsumexp.bound[row] + 0.5 * ulp<float>(want);
        CAPTURE(row, got.logsumexp[row], want);
        CHECK(std::fabs(got.logsumexp[row] - want) <= allowed);
    }
}

void check(const FlashRun& run) {
    CAPTURE(run.shape);
    const ForwardReference exact(run.shape, widen(run.qkv));
    check_forward(run, run.forward(), exact);

    const FlashRun::Forward kept = run.rounded(exact);  // so that the backward pass is checked separately
    const std::vector<bf16> got = run.backward(kept);
    const auto reference = [&](RoundWeight weight) {
        return backward_reference(run.shape, widen(run.dout), widen(run.qkv), widen(kept.out), widen(kept.logsumexp),
                                  weight);
    };
    const Expected wanted = reference(unrounded), rounded = reference(rounded_to_bf16);
    for (int part : {0, 1, 2}) check_against_rounded(got, wanted, rounded, run.shape, 3, part);
}

}  // namespace

TEST_CASE("flash attention is as close to fp64 as its roundings allow, at every length", "[attention]") {
    // lengths around tile boundaries, one and several tiles
    const int seq_len = GENERATE(1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257);
    check(FlashRun({seq_len < 100 ? 2 : 1, seq_len < 257 ? 2 : 1, 64, seq_len}, 10 + seq_len));
}

// Three tiles are the minimum with which a buffer is reused.
TEST_CASE("flash attention is as close to fp64 as its roundings allow, at every head size", "[attention]") {
    const int head_size = GENERATE(64, 80, 96, 128), seq_len = GENERATE(1, 65, 129);
    REQUIRE(kernels::flash_takes(head_size));
    check(FlashRun({1, 2, head_size, seq_len}, 400 + head_size + seq_len));
}

TEST_CASE("flash attention is as close to fp64 as its roundings allow, in five tiles of every head size",
          "[attention][large]") {
    const int head_size = GENERATE(64, 80, 96, 128);
    check(FlashRun({1, 2, head_size, 257}, 657 + head_size));
}

TEST_CASE("flash attention is as close to fp64 as its roundings allow, at 1024 positions", "[attention][large]") {
    check(FlashRun({1, 1, 64, 1024}, 21));
}

TEST_CASE("flash attention is correct with scores in the thousands", "[attention][large]") {
    const int seq_len = GENERATE(1, 97), head_size = GENERATE(64, 80);
    const FlashRun run({1, 6, head_size, seq_len}, 31, 30.0);
    REQUIRE(largest_magnitude(ForwardReference(run.shape, widen(run.qkv)).logsumexp.value) > 1000);
    check(run);
}

TEST_CASE("flash attention at the first position is the first value", "[attention]") {
    check_first_position_is_first_value(FlashRun({2, 3, 64, 40}, 5));
}

TEST_CASE("flash attention of earlier positions does not depend on later ones", "[attention][large]") {
    const double deviation = GENERATE(1e34, 5e37);  // with the larger one dout . v is sometimes infinite
    check_earlier_positions_are_independent<FlashRun>({2, 2, 64, 140}, GENERATE(1, 37, 64, 129), deviation);
}

TEST_CASE("flash attention rejects invalid inputs", "[attention]") {
    for (int head_size : {-64, 0, 8, 32, 48, 72, 112, 127, 256})
        CHECK_FALSE(kernels::flash_takes(head_size));
    check_refused<bf16, Flash>(64);
    const device::Array<bf16> array(3 * 4 * 64);
    const device::Array<float> rows(4);
    CHECK_THROWS_WITH(Flash::forward({array.span(), rows.span(), array.span(), {1, 2, 2, 48}}),
                      Contains("head_size is 48"));
}
