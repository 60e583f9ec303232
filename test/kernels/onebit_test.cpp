// onebit_test.cpp - the mean over ranks at 1 bit per element: test vectors, padding, masks, non-finite values, and that
// error feedback loses nothing over many calls
#include "kernels/onebit.h"

#include <cmath>
#include <random>

#include "kernels/device/memory.h"
#include "test/kernels/onebit_ranks.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

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

namespace {

// Checks that the sum of inputs equals the sum of results plus the errors.
void check_that_nothing_is_lost(int count, std::int64_t group, bool one, int calls) {
    CAPTURE(count, group, one);
    constexpr std::size_t kSize = 3 * 128 + 5;
    std::vector<bool> kept(kSize, true);
    for (std::size_t i = 0; i < kSize; i += 97) kept[i] = false;
    OnebitRanks ranks(kSize, count, 128, kept, group, one);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    Floats spread(kSize);
    for (float& x : spread) x = std::exp(normal(random));
    std::vector<double> wanted(kSize), got(kSize);
    double length = 0, lost = 0;
    for (int call = 0; call < calls; ++call) {
        std::vector<Floats> inputs{std::size_t(count), Floats(kSize)};
        for (Floats& x : inputs)
            for (std::size_t i = 0; i < kSize; ++i) x[i] = spread[i] * normal(random);
        const auto means = ranks.average(inputs);
        for (std::size_t i = 0; i < kSize; ++i) {
            for (const Floats& x : inputs) wanted[i] += double(x[i]) / count;
            got[i] += means[0][i];
        }
        for (const Floats& mean : means) REQUIRE(mean == means[0]);
    }
    std::vector<Floats> errors, server_errors;
    for (const auto& rank : ranks.rank) {
        errors.push_back(host(rank.error));
        server_errors.push_back(host(rank.server_error));
    }
    const auto chunk = std::size_t(ranks.plan.layout.chunk);
    for (std::size_t i = 0; i < kSize; ++i) {
        double left = server_errors[i / chunk][i % chunk];
        for (const Floats& error : errors) left += double(error[i]) / count;
        if (!kept[i]) {
            CHECK((got[i] == 0 && left == 0));
            continue;
        }
        length += wanted[i] * wanted[i];
        lost += (got[i] + left - wanted[i]) * (got[i] + left - wanted[i]);
    }
    CAPTURE(std::sqrt(lost / length));
    CHECK(lost < 1e-10 * length);
}

}  // namespace

TEST_CASE("over many calls nothing is lost: the errors hold the difference", "[kernels][onebit]") {
    const int count = GENERATE(1, 2, 3, 4, 8);
    const auto [group, one] = GENERATE(std::pair(0, true), std::pair(64, true), std::pair(64, false));
    check_that_nothing_is_lost(count, group, one, 8);
}

TEST_CASE("over fifty calls nothing is lost, with any number of ranks", "[kernels][onebit][large][statistics]") {
    const int count = GENERATE(1, 2, 3, 4, 8);
    const auto [group, one] = GENERATE(std::pair(0, true), std::pair(64, true), std::pair(64, false));
    check_that_nothing_is_lost(count, group, one, 50);
}

namespace {

void check_one_call(int count, std::size_t size) {
    CAPTURE(count, size);
    OnebitRanks ranks(std::int64_t(size), count, 128);
    const auto padded = std::size_t(ranks.plan.layout.padded()), chunk = std::size_t(ranks.plan.layout.chunk);
    std::mt19937 random(unsigned(size) + unsigned(count));
    std::normal_distribution<float> normal;
    const auto servers = std::size_t(count);
    std::vector<Floats> inputs(servers, Floats(size)), errors(servers, Floats(padded));
    std::vector<double> sum(padded);
    for (std::size_t r = 0; r < inputs.size(); ++r) {
        for (float& x : inputs[r]) x = normal(random);
        for (float& x : errors[r]) x = normal(random) / 4;
        ranks.rank[r].error.upload(errors[r], nullptr);
        double squares = 0;
        Floats z = errors[r];
        for (std::size_t i = 0; i < size; ++i) z[i] = errors[r][i] + inputs[r][i];
        for (const float x : z) squares += double(x) * double(x);
        for (std::size_t i = 0; i < padded; ++i)
            sum[i] += (z[i] >= 0 ? 1 : -1) * std::sqrt(squares / double(padded)) / count;
    }
    const auto means = ranks.average(inputs);
    for (std::size_t q = 0; q < servers; ++q) {
        double squares = 0;
        for (std::size_t i = q * chunk; i < (q + 1) * chunk; ++i) squares += sum[i] * sum[i];
        const double scale = std::sqrt(squares / double(chunk));
        for (std::size_t i = q * chunk; i < std::min(size, (q + 1) * chunk); ++i) {
            if (std::fabs(sum[i]) < 1e-6) continue;  // rounding decides the sign of a sum that cancels
            const double want = sum[i] >= 0 ? scale : -scale;
            if (std::fabs(means[0][i] - want) <= 1e-6 * scale) continue;
            CAPTURE(i, means[0][i], want);
            FAIL_CHECK("unexpected value");
        }
    }
}

}  // namespace

TEST_CASE("one call equals the formula in double, at sizes around every boundary", "[kernels][onebit]") {
    const int count = GENERATE(1, 2, 3, 4, 8);
    check_one_call(count, GENERATE(1, 7, 16, 33, 768 * 3 + 5, 70001));
}

TEST_CASE("one call equals the formula in double, with a million elements", "[kernels][onebit][large][statistics]") {
    check_one_call(GENERATE(1, 2, 3, 4, 8), 1000000);
}

TEST_CASE("momentum, second moment and gradient scale are applied before the error", "[kernels][onebit]") {
    constexpr std::size_t kSize = 1000;
    const OnebitPlan plan = onebit_plan(onebit_layout(kSize, 2), 0, {});
    const auto padded = std::size_t(plan.layout.padded());
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    Floats gradient(padded, NAN), error(padded), momentum(kSize), second(kSize);
    for (std::size_t i = 0; i < kSize; ++i) {
        gradient[i] = normal(random);
        momentum[i] = normal(random);
        second[i] = 0.5f + std::fabs(normal(random));
    }
    for (float& x : error) x = normal(random);
    const bool divides = GENERATE(false, true);
    const float scale = 0.25f;
    const device::Array<OnebitTile> tiles(std::span<const OnebitTile>(plan.tiles), nullptr);
    const device::Array<float> values(std::span<const float>(gradient), nullptr),
        errors(std::span<const float>(error), nullptr), moments(std::span<const float>(momentum), nullptr),
        seconds(std::span<const float>(second), nullptr), scales(std::span(&scale, 1), nullptr);
    const device::Array<std::uint32_t> messages(std::size_t(2 * plan.layout.message_words()));
    const device::Array<double> partial(plan.tiles.size());
    onebit_compress({.layout = plan.layout, .tiles = tiles.span(), .values = values.span(), .error = errors.span(),
                     .messages = messages.span(), .partial = partial.span(), .momentum = moments.span(),
                     .second_moment = divides ? seconds.span() : std::span<float>(),
                     .gradient_scale = scales.span(), .momentum_weight = 0.9f, .gradient_weight = 0.1f, .eps = 0.25f},
                    nullptr);
    const Floats z = host(values);
    double squares = 0;
    for (std::size_t i = 0; i < padded; ++i) {
        double want = 0;
        if (i < kSize) want = 0.9 * double(momentum[i]) + 0.1 * 0.25 * double(gradient[i]);
        if (i < kSize && divides) want /= std::sqrt(double(second[i])) + 0.25;
        want += double(error[i]);
        CAPTURE(i, divides);
        CHECK(z[i] == Approx(want).margin(1e-6));
        squares += double(z[i]) * double(z[i]);
    }
    double sum = 0;
    for (const double part : host(partial)) sum += part;
    CHECK(sum == Approx(squares).epsilon(1e-6));
}

TEST_CASE("arrays that are too short for the layout are rejected by name", "[kernels][onebit]") {
    const OnebitPlan plan = onebit_plan(onebit_layout(100, 2), 0, {});
    const device::Array<OnebitTile> tiles(std::span<const OnebitTile>(plan.tiles), nullptr);
    const device::Array<float> some(200), enough(256);
    const device::Array<std::uint32_t> messages(std::size_t(2 * plan.layout.message_words()));
    const device::Array<double> partial(plan.tiles.size());
    OnebitCompress op{.layout = plan.layout, .tiles = tiles.span(), .values = some.span(), .error = enough.span(),
                      .messages = messages.span(), .partial = partial.span()};
    CHECK_THAT(test::error_of([&] { onebit_compress(op, nullptr); }), test::Contains("the size of values is 200"));
    op.values = enough.span();
    op.messages = op.messages.first(4);
    CHECK_THAT(test::error_of([&] { onebit_compress(op, nullptr); }), test::Contains("the size of messages is 4"));
    CHECK_THAT(test::error_of([] { onebit_layout(1, 0); }), test::Contains("the number of ranks is 0"));
    CHECK_THAT(test::error_of([] { onebit_layout(1, 1, 12); }), test::Contains("a multiple of 8"));
    CHECK_THAT(test::error_of([&] { onebit_plan(plan.layout, 48, {}); }), test::Contains("a multiple of 32"));
}
