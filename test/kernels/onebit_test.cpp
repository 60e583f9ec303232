// onebit_test.cpp - the mean over ranks at 1 bit per element: test vectors, padding, masks, non-finite values (each
// kernel: operations/onebit.cpp; that errors lose nothing: llmc/model/onebit_adam_ranks_test.cpp)
#include "kernels/onebit.h"

#include <cmath>

#include "kernels/device/memory.h"
#include "test/kernels/onebit_ranks.h"
#include "test/support/catch.h"

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
    CAPTURE(bad, place, one);
    OnebitRanks ranks(16, 2, 8, {}, 0, one);
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
