// layernorm_test.cpp - layer normalisation against fp64, its gradient against fp64 and against finite differences
#include <omp.h>

#include "kernels/layernorm.h"
#include "test/support.h"

using kernels::bf16;

namespace {

// The operation by its formula, from the values as they are stored. With Number = float: what rounding costs a plain loop.
template <class Number>
struct Reference {
    std::vector<double> normed, mean, rstd;
    std::vector<double> dresidual, dweight, dbias;

    template <class Values, class Parameters>
    void forward(const Values& x, const Parameters& weight, const Parameters& bias, int rows, int channels) {
        for (int row = 0; row < rows; ++row) {
            const auto* in = &x[std::size_t(row) * channels];
            Number sum = 0, squares = 0;
            for (int c = 0; c < channels; ++c) sum += Number(in[c]);
            const Number m = sum / channels;
            for (int c = 0; c < channels; ++c) squares += (Number(in[c]) - m) * (Number(in[c]) - m);
            const Number r = 1 / std::sqrt(squares / channels + Number(1e-5));
            for (int c = 0; c < channels; ++c) normed.push_back((Number(in[c]) - m) * r * Number(weight[c]) + Number(bias[c]));
            mean.push_back(m);
            rstd.push_back(r);
        }
    }
    template <class Values, class Statistics>
    void backward(const Values& dnormed, const Values& x, const Values& weight, const Statistics& means, const Statistics& rstds, int rows,
                  int channels) {
        std::vector<Number> dw(channels), db(channels);
        for (int row = 0; row < rows; ++row) {
            const std::size_t first = std::size_t(row) * channels;
            const Number m = Number(means[row]), r = Number(rstds[row]);
            Number g_sum = 0, gn_sum = 0;
            for (int c = 0; c < channels; ++c) {
                const Number d = Number(dnormed[first + c]), n = (Number(x[first + c]) - m) * r, g = Number(weight[c]) * d;
                g_sum += g;
                gn_sum += g * n;
                dw[c] += d * n;
                db[c] += d;
            }
            for (int c = 0; c < channels; ++c) {
                const Number g = Number(weight[c]) * Number(dnormed[first + c]), n = (Number(x[first + c]) - m) * r;
                dresidual.push_back((g - g_sum / channels - n * (gn_sum / channels)) * r);
            }
        }
        dweight.assign(dw.begin(), dw.end());
        dbias.assign(db.begin(), db.end());
    }
};

// What a plain float loop loses.
double loss(const std::vector<double>& want, const std::vector<double>& plain) {
    double lost = 0;
    for (std::size_t i = 0; i < want.size(); ++i) lost = std::max(lost, std::fabs(plain[i] - want[i]));
    return lost;
}

// Largest error in units of what is allowed: three times what a plain float loop loses, which has another order, two roundings of a float, and half a
// unit in the last place of T for storing. `before` was there already and is added in float.
template <class T>
double excess(const std::vector<T>& got, std::vector<double> want, double lost, const std::vector<double>& before = {}) {
    REQUIRE(got.size() == want.size());
    double worst = 0;
    const double slack = 3 * lost + 2 * test::ulp<float>(test::largest_magnitude(want));
    for (std::size_t i = 0; i < want.size(); ++i) {
        if (!before.empty()) want[i] += before[i];
        const double error = std::fabs(test::widen(got[i]) - want[i]);
        const double allowed = slack + 0.5 * test::ulp<T>(std::fabs(want[i]) + slack) + (before.empty() ? 0 : test::ulp<float>(before[i]));
        worst = std::max(worst, std::isnan(error) ? INFINITY : error / allowed);
    }
    return worst;
}

template <class T>
struct Case {
    int rows, channels;
    std::vector<T> left, right, weight, bias, dnormed, dresidual_before;
    std::vector<float> dweight_before, dbias_before;

    Case(int rows, int channels, double offset)
        : rows(rows), channels(channels), left(test::normal<T>(size(), 1, 1, offset)), right(test::normal<T>(size(), 2)),
          weight(test::normal<T>(channels, 3, 0.3, 1)), bias(test::normal<T>(channels, 4)), dnormed(test::normal<T>(size(), 5)),
          dresidual_before(test::normal<T>(size(), 6)), dweight_before(test::normal<float>(channels, 7)),
          dbias_before(test::normal<float>(channels, 8)) {}

    std::size_t size() const { return std::size_t(rows) * channels; }
    std::vector<T> residual() const {
        std::vector<T> sum;
        for (std::size_t i = 0; i < size(); ++i) sum.push_back(test::narrow<T>(test::widen(left[i]) + test::widen(right[i])));
        return sum;
    }

    struct Forward { std::vector<T> residual, normed; std::vector<float> mean, rstd; };
    Forward plain(const std::vector<T>& residual) const {
        const auto in = test::on_device(residual), w = test::on_device(weight), b = test::on_device(bias);
        const auto normed = test::poisoned<T>(size());
        const auto mean = test::poisoned<float>(rows), rstd = test::poisoned<float>(rows);
        kernels::layernorm_forward<T>({normed.span(), mean.span(), rstd.span(), in.span(), w.span(), b.span(), rows, channels}, nullptr);
        return {residual, normed.download(nullptr), mean.download(nullptr), rstd.download(nullptr)};
    }
    Forward fused(bool in_place) const {
        const auto l = test::on_device(left), r = test::on_device(right), w = test::on_device(weight), b = test::on_device(bias);
        const auto separate = test::poisoned<T>(size()), normed = test::poisoned<T>(size());
        const auto& residual = in_place ? l : separate;
        const auto mean = test::poisoned<float>(rows), rstd = test::poisoned<float>(rows);
        kernels::residual_layernorm_forward<T>({residual.span(), normed.span(), mean.span(), rstd.span(), l.span(), r.span(), w.span(), b.span(),
                                                rows, channels}, nullptr);
        return {residual.download(nullptr), normed.download(nullptr), mean.download(nullptr), rstd.download(nullptr)};
    }

    struct Backward { std::vector<T> dresidual; std::vector<float> dweight, dbias; };
    Backward backward(const Forward& forward, bool accumulate_dresidual, bool accumulate_parameters) const {
        const auto dout = test::on_device(dnormed), in = test::on_device(forward.residual), w = test::on_device(weight);
        const auto mean = test::on_device(forward.mean), rstd = test::on_device(forward.rstd);
        const auto dresidual = accumulate_dresidual ? test::on_device(dresidual_before) : test::poisoned<T>(size());
        const auto dweight = accumulate_parameters ? test::on_device(dweight_before) : test::poisoned<float>(channels);
        const auto dbias = accumulate_parameters ? test::on_device(dbias_before) : test::poisoned<float>(channels);
        const auto scratch = test::poisoned<float>(kernels::layernorm_backward_scratch(channels));
        kernels::layernorm_backward<T>({dresidual.span(), dweight.span(), dbias.span(), scratch.span(), dout.span(), in.span(), w.span(),
                                        mean.span(), rstd.span(), rows, channels, accumulate_dresidual, accumulate_parameters}, nullptr);
        return {dresidual.download(nullptr), dweight.download(nullptr), dbias.download(nullptr)};
    }
};

template <class T> bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// One row; rows that no block divides; a pack's tail on a CPU; GPT-2's width; more rows than blocks; rows wider than a GPU's shared memory.
#define SHAPES GENERATE(table<int, int>({{1, 16}, {3, 48}, {37, 80}, {5, 768}, {2100, 32}, {3, 13056}, {3, 13000}}))

}  // namespace

TEMPLATE_TEST_CASE("layer normalisation equals fp64, plain and fused, to the same bits", "[layernorm]", float, bf16) {
    const auto [rows, channels] = SHAPES;
    const double offset = GENERATE(0.0, 100.0);
    CAPTURE(rows, channels, offset);
    const Case<TestType> c(rows, channels, offset);
    const auto residual = c.residual();
    const auto plain = c.plain(residual);

    Reference<double> want;
    Reference<float> rounded;
    want.forward(test::widen(residual), test::widen(c.weight), test::widen(c.bias), rows, channels);
    rounded.forward(test::widen(residual), test::widen(c.weight), test::widen(c.bias), rows, channels);
    // A few means or deviations say little about what rounding may cost, so they may also be off by what `normed` may.
    const double lost = loss(want.normed, rounded.normed), rstd = test::largest_magnitude(want.rstd);
    CHECK(excess(plain.normed, want.normed, lost) <= 1);
    CHECK(excess(plain.mean, want.mean, std::max(loss(want.mean, rounded.mean), lost / rstd)) <= 1);
    CHECK(excess(plain.rstd, want.rstd, std::max(loss(want.rstd, rounded.rstd), lost * rstd / test::largest_magnitude(want.normed))) <= 1);

    const bool in_place = GENERATE(false, true);
    const auto fused = c.fused(in_place);
    CHECK(same_bits(fused.residual, residual));
    CHECK(same_bits(fused.normed, plain.normed));
    CHECK(same_bits(fused.mean, plain.mean));
    CHECK(same_bits(fused.rstd, plain.rstd));
}

TEMPLATE_TEST_CASE("layernorm_backward equals fp64", "[layernorm]", float, bf16) {
    const auto [rows, channels] = SHAPES;
    const double offset = GENERATE(0.0, 100.0);
    const bool accumulate_dresidual = GENERATE(false, true), accumulate_parameters = GENERATE(false, true);
    CAPTURE(rows, channels, offset, accumulate_dresidual, accumulate_parameters);
    const Case<TestType> c(rows, channels, offset);
    const auto forward = c.plain(c.residual());
    const auto got = c.backward(forward, accumulate_dresidual, accumulate_parameters);

    Reference<double> want;
    Reference<float> rounded;
    const auto dnormed = test::widen(c.dnormed), residual = test::widen(forward.residual), weight = test::widen(c.weight);
    want.backward(dnormed, residual, weight, forward.mean, forward.rstd, rows, channels);
    rounded.backward(dnormed, residual, weight, forward.mean, forward.rstd, rows, channels);
    using Before = std::vector<double>;
    const auto dresidual_before = accumulate_dresidual ? test::widen(c.dresidual_before) : Before{};
    CHECK(excess(got.dresidual, want.dresidual, loss(want.dresidual, rounded.dresidual), dresidual_before) <= 1);
    const auto dweight_before = accumulate_parameters ? test::widen(c.dweight_before) : Before{};
    CHECK(excess(got.dweight, want.dweight, loss(want.dweight, rounded.dweight), dweight_before) <= 1);
    const auto dbias_before = accumulate_parameters ? test::widen(c.dbias_before) : Before{};
    CHECK(excess(got.dbias, want.dbias, loss(want.dbias, rounded.dbias), dbias_before) <= 1);
}

// Rows that vary by about sqrt(1e-5), where epsilon weighs as much as the variance, and rows that do not vary at all.
TEST_CASE("epsilon is inside the root", "[layernorm]") {
    constexpr int rows = 3, channels = 96;
    Case<float> c(rows, channels, 0);
    auto x = test::normal<float>(rows * channels, 10, 3e-3);
    std::fill(x.begin(), x.begin() + channels, 0.25f);
    const auto got = c.plain(x);
    Reference<double> want;
    Reference<float> rounded;
    want.forward(x, c.weight, c.bias, rows, channels);
    rounded.forward(x, c.weight, c.bias, rows, channels);
    CHECK(excess(got.normed, want.normed, loss(want.normed, rounded.normed)) <= 1);
    CHECK(excess(got.rstd, want.rstd, loss(want.rstd, rounded.rstd)) <= 1);
}

// The formula itself: slopes of loss = sum of dnormed * normed, in fp64 throughout.
TEST_CASE("the gradient of layer normalisation is its slope", "[layernorm]") {
    constexpr int rows = 2, channels = 16;
    const Case<float> c(rows, channels, 1);
    const auto dnormed = test::widen(c.dnormed);
    auto x = test::widen(c.residual()), weight = test::widen(c.weight), bias = test::widen(c.bias);
    const auto loss = [&] {
        Reference<double> r;
        r.forward(x, weight, bias, rows, channels);
        double sum = 0;
        for (std::size_t i = 0; i < dnormed.size(); ++i) sum += dnormed[i] * r.normed[i];
        return sum;
    };
    Reference<double> at;
    at.forward(x, weight, bias, rows, channels);
    at.backward(dnormed, x, weight, at.mean, at.rstd, rows, channels);
    const auto check = [&](std::vector<double>& variable, const std::vector<double>& gradient) {
        constexpr double step = 1e-4;  // error: step^2 times the third derivative, and 1e-16 / step: both below 1e-7 here
        for (std::size_t i = 0; i < variable.size(); ++i) {
            const double here = variable[i];
            variable[i] = here + step;
            const double above = loss();
            variable[i] = here - step;
            const double below = loss();
            variable[i] = here;
            CAPTURE(i);
            CHECK(std::fabs((above - below) / (2 * step) - gradient[i]) <= 1e-6);
        }
    };
    check(x, at.dresidual);
    check(weight, at.dweight);
    check(bias, at.dbias);
}

TEMPLATE_TEST_CASE("layernorm repeats bit for bit, on any number of threads", "[layernorm]", float, bf16) {
    const Case<TestType> c(517, 96, 0);
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const auto forward = c.fused(false);
    const auto one = c.backward(forward, true, true);
    omp_set_num_threads(2);
    const auto forward_two = c.fused(false);
    const auto two = c.backward(forward, true, true), again = c.backward(forward, true, true);
    omp_set_num_threads(threads);
    CHECK(same_bits(forward.normed, forward_two.normed));
    for (const auto* other : {&two, &again}) {
        CHECK(same_bits(one.dresidual, other->dresidual));
        CHECK(same_bits(one.dweight, other->dweight));
        CHECK(same_bits(one.dbias, other->dbias));
    }
}

TEST_CASE("layernorm refuses what it cannot do", "[layernorm]") {
    const llmc::DeviceArray<float> array(kernels::layernorm_backward_scratch(32));
    const std::span<float> all = array.span(), few = all.first(1);
    kernels::ResidualLayerNormForward<float> good{all, all, all, all, all, all, all, all, 2, 32};
    const auto forward = [&](auto change) {
        auto op = good;
        change(op);
        kernels::residual_layernorm_forward<float>(op, nullptr);
    };
    CHECK_THROWS_WITH(forward([](auto& op) { op.channels = 18; }), Catch::Contains("channels of a LayerNorm is 18"));
    CHECK_THROWS_WITH(forward([](auto& op) { op.rows = 0; }), Catch::Contains("rows of a LayerNorm is 0"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.residual = few; }), Catch::Contains("residual is 1"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.normed = few; }), Catch::Contains("normed is 1"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.mean = few; }), Catch::Contains("mean is 1"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.rstd = few; }), Catch::Contains("rstd is 1"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.left = few; }), Catch::Contains("left is 1"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.right = few; }), Catch::Contains("right is 1"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.weight = few; }), Catch::Contains("weight is 1"));
    CHECK_THROWS_WITH(forward([&](auto& op) { op.bias = few; }), Catch::Contains("bias is 1"));
    CHECK_THROWS_WITH(kernels::layernorm_forward<float>({few, all, all, all, all, all, 2, 32}, nullptr), Catch::Contains("normed is 1"));
    CHECK_THROWS_WITH(kernels::layernorm_forward<float>({all, all, all, all, all, all, 2, 30}, nullptr), Catch::Contains("is 30"));

    const kernels::LayerNormBackward<float> good_backward{all, all, all, all, all, all, all, all, all, 2, 32, false, false};
    const auto backward = [&](auto change) {
        auto op = good_backward;
        change(op);
        kernels::layernorm_backward<float>(op, nullptr);
    };
    CHECK_THROWS_WITH(backward([](auto& op) { op.channels = 18; }), Catch::Contains("is 18"));
    CHECK_THROWS_WITH(backward([](auto& op) { op.rows = -1; }), Catch::Contains("is -1"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.dresidual = few; }), Catch::Contains("dresidual is 1"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.dnormed = few; }), Catch::Contains("dnormed is 1"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.residual = few; }), Catch::Contains("residual is 1"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.mean = few; }), Catch::Contains("mean is 1"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.rstd = few; }), Catch::Contains("rstd is 1"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.weight = few; }), Catch::Contains("weight is 1"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.dweight = few; }), Catch::Contains("dweight is 1"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.dbias = few; }), Catch::Contains("dbias is 1"));
    CHECK_THROWS_WITH(backward([&](auto& op) { op.scratch = few; }), Catch::Contains("scratch is 1"));
}
