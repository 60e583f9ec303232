// onebit_test.cpp - the mean over ranks at 1 and 4 bits per element: test vectors, padding, masks, non-finite values,
// and that errors lose nothing (each kernel: operations/onebit.cpp)
#include "kernels/onebit.h"

#include "test/kernels/onebit_ranks.h"
#include "test/support/support.h"

using namespace kernels;
using test::Floats, test::OnebitRanks, test::host, test::kInputs;

namespace {

std::vector<Floats> first_elements(std::vector<Floats> inputs, std::size_t count) {
    for (Floats& x : inputs) x.resize(count);
    return inputs;
}

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

TEST_CASE("padding affects scales and errors, but not the result", "[kernels][onebit]") {
    OnebitRanks ranks(10, 2, 8);
    const auto first = ranks.average(first_elements(kInputs[0], 10));
    check_near({ranks.worker_scale(0), ranks.worker_scale(1)}, {.875f, .419262737f});
    check_near(first[0], signed_by("+-+++--+++", 8, {.435309887f, .647131383f}));
    CHECK(host(ranks.rank[0].error)[15] == -.875f);
    check_near({host(ranks.rank[1].error)[15]}, {-.419262737f});
    const auto second = ranks.average(first_elements(kInputs[1], 10));
    check_near({ranks.worker_scale(0), ranks.worker_scale(1)}, {.723489821f, .52918154f});
    check_near(second[0], signed_by("++-+++--+-", 8, {.463447481f, .626335680f}));
    check_near({host(ranks.rank[0].error)[12], host(ranks.rank[1].error)[12]}, {-.151510179f, .109918803f});

    for (const auto& [size, count, padded] :
         {std::tuple(1, 1, 8), {17, 2, 32}, {768, 3, 768}, {768, 16, 768}, {124475904, 64, 124475904}})
        CHECK(onebit_layout(size, count, 8).padded() == padded);
    CHECK(onebit_layout(1, 3).padded() == 384);
}

TEST_CASE("masked elements receive 0, keep no error and are not counted", "[kernels][onebit]") {
    std::vector<bool> kept(16, true);
    kept[3] = kept[14] = false;
    OnebitRanks ranks(16, 2, 8, kept);
    const auto first = ranks.average(kInputs[0]);
    check_near({ranks.worker_scale(0), ranks.worker_scale(1)}, {1.06904495f, .513218105f});
    check_near(first[0], signed_by("+-+0+--++++-+-0-", 8, {.558903337f, .791131556f}));
    const auto second = ranks.average(kInputs[1]);
    check_near({ranks.worker_scale(0), ranks.worker_scale(1)}, {.926286757f, .485829264f});
    check_near(second[0], signed_by("++-0+++-+--+-+0+", 8, {.558149219f, .658961177f}));
    for (const int i : {3, 14}) {
        CHECK((ranks.sent_bits(0, 8) >> i & 1) == 1);
        for (const auto& rank : ranks.rank) CHECK(host(rank.error)[std::size_t(i)] == 0.0f);
        CHECK(host(ranks.rank[std::size_t(i / 8)].server_error)[std::size_t(i % 8)] == 0.0f);
    }
    // All elements are masked.
    OnebitRanks none(16, 2, 8, std::vector<bool>(16, false));
    CHECK(none.average(kInputs[0])[0] == Floats(16, 0.0f));
    CHECK(none.worker_scale(0) == 0.0f);
}

TEST_CASE("-0 is sent as +1, and zeros remain zeros", "[kernels][onebit]") {
    OnebitRanks ranks(40, 1, 8);
    const Floats negative(40, -0.0f);
    ranks.rank[0].error.upload(negative, nullptr);
    Floats x = negative;
    x[7] = -1;
    ranks.average({x});
    const auto sent = host(ranks.rank[0].messages);
    CHECK(sent[4] == ~(1u << 7));
    CHECK(sent[5] == 0xff);  // eight elements; the word's other bits are 0
    OnebitRanks zeros(40, 2, 8);
    CHECK(zeros.average({Floats(40), Floats(40)})[1] == Floats(40));
    CHECK(host(zeros.rank[0].error) == Floats(48));
}

TEST_CASE("a non-finite number on one rank changes nothing on any rank", "[kernels][onebit]") {
    const auto bad = GENERATE(NAN, INFINITY, -INFINITY);
    const auto place = GENERATE(0, 9, 15);
    const bool one = GENERATE(true, false);  // false: exactly one of all scales is not finite
    const int bits = GENERATE(1, 4);
    CAPTURE(bad, place, one, bits);
    OnebitRanks ranks(16, 2, 8, {}, 0, one, bits);
    const auto means = ranks.average(kInputs[0]);
    std::vector<Floats> before;
    for (const auto& rank : ranks.rank) before.insert(before.end(), {host(rank.error), host(rank.server_error)});
    auto inputs = kInputs[1];
    inputs[1][std::size_t(place)] = bad;
    CHECK(ranks.average(inputs) == means);  // nothing was written
    std::vector<Floats> after;
    for (const auto& rank : ranks.rank) after.insert(after.end(), {host(rank.error), host(rank.server_error)});
    CHECK(after == before);
    for (const auto& rank : ranks.rank) CHECK(host(rank.finite)[0] == 0);
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

TEST_CASE("means and pending errors add up to the means of the inputs", "[kernels][onebit]") {
    const int count = GENERATE(1, 2, 3, 4, 8), bits = GENERATE(1, 4);
    const bool masked = GENERATE(false, true);
    CAPTURE(count, bits, masked);
    constexpr std::size_t kSize = 1000, kCalls = 20;
    std::vector<bool> kept(masked ? kSize : 0);
    for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = i % 7 != 3;
    OnebitRanks ranks(kSize, count, 32, kept, 64, false, bits);
    std::vector<double> wanted(kSize), got(kSize), scale(kSize);
    for (unsigned call = 0; call < kCalls; ++call) {
        std::vector<Floats> inputs;
        for (int r = 0; r < count; ++r) {
            inputs.push_back(test::normal<float>(kSize, call * 8 + unsigned(r), 1 << call % 3));
            for (std::size_t i = 0; i < kSize; ++i) {
                wanted[i] += double(inputs.back()[i]) / count;
                scale[i] += std::fabs(double(inputs.back()[i])) / count;
            }
        }
        const Floats mean = ranks.average(inputs).back();
        for (std::size_t i = 0; i < kSize; ++i) got[i] += double(mean[i]);
    }
    const auto chunk = std::size_t(ranks.plan.layout.chunk);
    for (int r = 0; r < count; ++r) {
        const OnebitRanks::Rank& mine = ranks.rank[std::size_t(r)];
        const Floats error = host(mine.error), served = host(mine.server_error);
        for (std::size_t i = 0; i < kSize; ++i) got[i] += double(error[i]) / count;
        for (std::size_t i = 0; i < chunk && std::size_t(r) * chunk + i < kSize; ++i)
            got[std::size_t(r) * chunk + i] += double(served[i]);
    }
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kSize; ++i)
        wrong += masked && !kept[i] ? got[i] != 0 : std::fabs(got[i] - wanted[i]) > 1e-5 * scale[i];
    CHECK(wrong == 0);
}

TEST_CASE("with 4 bits zeros stay zeros, opposites stay opposites, and values move by half a level at most",
          "[kernels][onebit]") {
    constexpr std::size_t kSize = 3000;
    const int count = GENERATE(1, 2);
    const bool masked = GENERATE(false, true);  // padding is then masked
    std::vector<bool> kept(kSize, true);
    kept.resize(masked ? kSize + 16 : 0);
    OnebitRanks ranks(kSize, count, 8, kept, 0, true, 4);
    ranks.errors = false;
    const auto chunk = std::size_t(ranks.plan.layout.chunk), words = std::size_t(ranks.plan.layout.message_words()),
               header = std::size_t(ranks.plan.layout.header_words());
    std::vector<Floats> inputs, opposites;
    for (int r = 0; r < count; ++r) {
        inputs.push_back(test::normal<float>(kSize, unsigned(r)));
        for (std::size_t i = 0; i < kSize; i += 10) inputs.back()[i] = i % 20 == 0 ? 0.0f : -0.0f;
        inputs.back()[1] = 100;
        opposites.push_back(inputs.back());
        for (float& x : opposites.back()) x = -x;
    }
    const Floats mean = ranks.average(inputs)[0];
    for (int r = 0; r < count; ++r) {
        double squares = 0;
        for (const float x : inputs[std::size_t(r)]) squares += double(x) * double(x);
        const double elements = masked ? kSize : double(chunk * std::size_t(count));
        const float scale = ranks.worker_scale(r);
        CHECK(double(scale) == Approx(0.3529 * std::sqrt(squares / elements)));
        const auto sent = host(ranks.rank[std::size_t(r)].messages);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < kSize; ++i) {
            const float z = inputs[std::size_t(r)][i];
            const float q = ranks.decoded(&sent[i / chunk * words + header], i % chunk, scale);
            if (i == 1) wrong += q != 7 * scale;
            else wrong += std::fabs(double(z) - double(q)) > 0.500001 * double(scale) || (z == 0 && q != 0);
        }
        CHECK(wrong == 0);
    }
    std::size_t nonzero = 0;
    for (std::size_t i = 0; i < kSize; i += 10) nonzero += mean[i] != 0;
    CHECK(nonzero == 0);
    Floats negated = ranks.average(opposites)[0];
    for (float& y : negated) y = -y;
    CHECK(negated == mean);
    CHECK(ranks.average(std::vector<Floats>(std::size_t(count), Floats(kSize)))[0] == Floats(kSize));
    CHECK(ranks.worker_scale(0) == 0.0f);
}
