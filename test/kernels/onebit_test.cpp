// onebit_test.cpp - the mean over ranks at 1 bit per element: test vectors, zeros, the verdict (each kernel:
// operations/onebit.cpp; whole means: llmc/model/onebit_mean_ranks_test.cpp)
#include "kernels/onebit.h"

#include "test/kernels/onebit_ranks.h"
#include "test/support/support.h"

using namespace kernels;
using test::Floats, test::OnebitRanks, test::host, test::kInputs;

namespace {

void check_near(const Floats& got, const Floats& want, double tolerance = 3e-7) {
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i, got[i], want[i]);
        CHECK(std::fabs(double(got[i]) - double(want[i])) <= tolerance);
    }
}

// Values from signs ("+-0") and the scale of each chunk.
Floats signed_by(const std::string& signs, std::size_t chunk, const Floats& scales) {
    Floats values;
    for (std::size_t i = 0; i < signs.size(); ++i)
        values.push_back(signs[i] == '0' ? 0.0f : signs[i] == '+' ? scales[i / chunk] : -scales[i / chunk]);
    return values;
}

}  // namespace

TEST_CASE("the 1-bit mean of two ranks matches the specification in every call", "[kernels][onebit]") {
    OnebitRanks ranks(16, 2, 8);
    const auto first = ranks.average(kInputs[0]);
    CHECK(ranks.worker_scale(0) == 1.0f);
    CHECK(ranks.worker_scale(1) == 0.5f);
    CHECK(ranks.sent_bits(0, 8) == 0x579d);  // 9d 57, the lowest byte first
    CHECK(ranks.sent_bits(1, 8) == 0x5733);
    CHECK(ranks.server_scale(0) == 0.5f);
    CHECK(ranks.server_scale(1) == 0.75f);
    CHECK(ranks.reply_bits(0) == 0x9d);
    CHECK(ranks.reply_bits(1) == 0x57);
    const Floats y{.5f, -.5f, .5f, .5f, .5f, -.5f, -.5f, .5f, .75f, .75f, .75f, -.75f, .75f, -.75f, .75f, -.75f};
    CHECK(first[0] == y);
    CHECK(first[1] == y);
    CHECK(host(ranks.rank[0].error) ==
          Floats{1, -.5f, 0, -1, -.5f, .5f, 0, .5f, -.5f, 0, -1, -.5f, -.5f, 0, -1, .5f});
    CHECK(host(ranks.rank[1].error) ==
          Floats{0, -.25f, 0, .25f, .5f, 0, 0, .25f, -.25f, .25f, -.5f, -.25f, 0, .25f, 0, .25f});
    CHECK(host(ranks.rank[0].server_error) == Floats{.25f, .25f, -.25f, -.25f, .25f, .25f, -.25f, -.25f});
    CHECK(host(ranks.rank[1].server_error) == Floats(8, 0.0f));

    const auto second = ranks.average(kInputs[1]);
    CHECK(ranks.worker_scale(0) == Approx(0.974779606).epsilon(1e-6));
    CHECK(ranks.worker_scale(1) == Approx(0.520103633).epsilon(1e-6));
    CHECK(ranks.sent_bits(0, 8) == 0xa9ef);
    CHECK(ranks.sent_bits(1, 8) == 0xbd7b);
    const float b0 = 0.659650147f, b1 = 0.657208025f;
    check_near({ranks.server_scale(0), ranks.server_scale(1)}, {b0, b1});
    CHECK(ranks.reply_bits(0) == 0x7b);
    CHECK(ranks.reply_bits(1) == 0xa9);
    check_near(second[0], signed_by("++-++++-+--+-+-+", 8, {b0, b1}));
    CHECK(second[1] == second[0]);
    check_near(host(ranks.rank[0].error),
               {-.974779606f, -.974779606f, -.724779606f, -.974779606f, -.0252203941f, .275220394f, -.974779606f,
                -.724779606f, .0252203941f, .474779606f, .224779606f, -.974779606f, -1.52522039f, -.724779606f,
                -1.02522039f, -.349779606f});
    check_near(host(ranks.rank[1].error),
               {-.270103633f, -.270103633f, .0201036334f, .479896367f, -.270103633f, -.270103633f, .479896367f,
                .270103633f, -.520103633f, -.479896367f, -.520103633f, -.520103633f, -.520103633f, .229896367f,
                .270103633f, -.145103633f});
    check_near(host(ranks.rank[0].server_error), {.337791502f, .337791502f, .636988163f, -.162208498f, -.636988163f,
                                                  .337791502f, -.162208498f, .636988163f});
    check_near(host(ranks.rank[1].server_error), {.090233624f, -.090233624f, .429870039f, .090233624f, .429870039f,
                                                  .090233624f, -.090233624f, .090233624f});
}

TEST_CASE("chunks are of equal length and a multiple of the alignment", "[kernels][onebit]") {
    for (const auto& [size, count, padded] :
         {std::tuple(1, 1, 8), {17, 2, 32}, {768, 3, 768}, {768, 16, 768}, {124475904, 64, 124475904}})
        CHECK(onebit_layout(size, count, 8).padded() == padded);
    CHECK(onebit_layout(1, 3).padded() == 384);
}

TEST_CASE("zeros remain zeros, and no active elements have the scale 0", "[kernels][onebit]") {
    const int bits = GENERATE(1, 4);
    OnebitRanks zeros(40, 2, 8, {}, bits);
    CHECK(zeros.average({Floats(40), Floats(40)})[1] == Floats(40));
    CHECK(host(zeros.rank[0].error) == Floats(48));
    CHECK(zeros.worker_scale(0) == 0.0f);
    OnebitRanks none(16, 2, 8, std::vector<bool>(16, false), bits);
    CHECK(none.average(kInputs[0])[0] == Floats(16));
    CHECK(none.worker_scale(0) == 0.0f);
}

TEST_CASE("one verdict of many ends an exchange", "[kernels][onebit]") {
    std::vector<std::int32_t> verdicts(300, 1);
    const auto agree = [&](std::int32_t own) {
        const device::Array<std::int32_t> all(verdicts, nullptr), finite(std::span(&own, 1), nullptr);
        onebit_agree({.verdicts = all.span(), .finite = finite.span()}, nullptr);
        return finite.download(nullptr)[0];
    };
    CHECK(agree(1) == 1);
    CHECK(agree(0) == 0);
    verdicts[299] = 0;
    CHECK(agree(1) == 0);
}
