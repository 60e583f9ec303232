// attention_test.cpp - causal attention against fp64, with bounds that follow the rounding errors of float through the formulae
#include "kernels/attention.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "test/support.h"

using namespace test;
using kernels::AttentionBackward;
using kernels::AttentionForward;

namespace {

constexpr double kUnit = 0x1p-24;     // largest relative error of one rounding to float
constexpr double kVanishes = 0x1p-125;  // an exponential below this may be any number between 0 and this

struct Shape {
    int batch, heads, head_size, seq_len;
    std::size_t rows() const { return std::size_t(batch) * heads * seq_len; }
    std::size_t elements() const { return rows() * head_size; }
    // Where q, k or v (part 0, 1, 2) of a position starts in qkv; with parts = 1, where a position starts in out.
    std::size_t at(int b, int t, int h, int parts = 1, int part = 0) const {
        return (((std::size_t(b) * seq_len + t) * parts + part) * heads + h) * head_size;
    }
    std::size_t row(int b, int h, int t) const { return (std::size_t(b) * heads + h) * seq_len + t; }
};

std::ostream& operator<<(std::ostream& to, const Shape& s) {
    return to << "batch " << s.batch << " heads " << s.heads << " head_size " << s.head_size << " seq_len " << s.seq_len;
}

double dot(const double* a, const double* b, int size) {
    double sum = 0;
    for (int i = 0; i < size; ++i) sum += a[i] * b[i];
    return sum;
}
double dot_of_magnitudes(const double* a, const double* b, int size) {
    double sum = 0;
    for (int i = 0; i < size; ++i) sum += std::fabs(a[i] * b[i]);
    return sum;
}

// Scores of one query against the keys it sees and how far off float arithmetic may be for any of them: a sum of head_size products in any order, the
// scaling, and what exp makes of an argument rounded to float (the hardware's exp is off by |x| units in the last place, |x| <= 2 max |s|).
struct Scores {
    std::vector<double> s;
    double error = 0;
    Scores(const Shape& shape, const std::vector<double>& qkv, int b, int h, int query) {
        const double scale = 1 / std::sqrt(double(shape.head_size));
        for (int key = 0; key <= query; ++key) {
            const double *q = &qkv[shape.at(b, query, h, 3, 0)], *k = &qkv[shape.at(b, key, h, 3, 1)];
            s.push_back(scale * dot(q, k, shape.head_size));
            error = std::max(error, (shape.head_size + 12) * kUnit * scale * dot_of_magnitudes(q, k, shape.head_size));
        }
    }
};

struct Wanted {
    std::vector<double> value, bound;  // bound: what float arithmetic may be off by, before the result is rounded to T
    explicit Wanted(std::size_t size) : value(size), bound(size) {}
};

struct ForwardReference {
    Wanted out, logsumexp;
    ForwardReference(const Shape& shape, const std::vector<double>& qkv) : out(shape.elements()), logsumexp(shape.rows()) {
        for (int b = 0; b < shape.batch; ++b)
            for (int h = 0; h < shape.heads; ++h)
                for (int query = 0; query < shape.seq_len; ++query) {
                    const Scores scores(shape, qkv, b, h, query);
                    const double largest = *std::max_element(scores.s.begin(), scores.s.end());
                    double sum = 0;
                    for (double s : scores.s) sum += std::exp(s - largest);
                    const std::size_t row = shape.row(b, h, query);
                    const double sums = (2 * query + 20) * kUnit;  // query + 1 terms in numerator and denominator, exp, rescaling
                    logsumexp.value[row] = largest + std::log(sum);
                    logsumexp.bound[row] = scores.error + sums + 4 * kUnit * (std::fabs(largest) + std::fabs(logsumexp.value[row]));
                    for (int key = 0; key <= query; ++key) {
                        const double p = std::exp(scores.s[key] - largest) / sum;
                        for (int c = 0; c < shape.head_size; ++c) {
                            const double v = qkv[shape.at(b, key, h, 3, 2) + c];
                            out.value[shape.at(b, query, h) + c] += p * v;
                            out.bound[shape.at(b, query, h) + c] += ((2 * scores.error + sums) * p + kVanishes) * std::fabs(v);
                        }
                    }
                }
    }
};

// The contract's formulae in fp64: p from `logsumexp` and delta from `out` as they are given.
Wanted backward_reference(const Shape& shape, const std::vector<double>& dout, const std::vector<double>& qkv, const std::vector<double>& out,
                          const std::vector<double>& logsumexp) {
    Wanted dqkv(3 * shape.elements());
    const int size = shape.head_size;
    const double scale = 1 / std::sqrt(double(size)), product = (size + 3) * kUnit, sums = (shape.seq_len + 6) * kUnit;
    for (int b = 0; b < shape.batch; ++b)
        for (int h = 0; h < shape.heads; ++h)
            for (int query = 0; query < shape.seq_len; ++query) {
                const Scores scores(shape, qkv, b, h, query);
                const double *g = &dout[shape.at(b, query, h)], *o = &out[shape.at(b, query, h)];
                const double lse = logsumexp[shape.row(b, h, query)], p_error = scores.error + 4 * kUnit * std::fabs(lse) + 10 * kUnit;
                const double delta = dot(g, o, size), delta_error = product * dot_of_magnitudes(g, o, size);
                const std::size_t q = shape.at(b, query, h, 3, 0);
                for (int key = 0; key <= query; ++key) {
                    const std::size_t k = shape.at(b, key, h, 3, 1), v = shape.at(b, key, h, 3, 2);
                    const double p = std::exp(scores.s[key] - lse), dp = dot(g, &qkv[v], size), ds = p * (dp - delta);
                    const double dp_error = delta_error + product * dot_of_magnitudes(g, &qkv[v], size);
                    const double ds_error = p * dp_error + (p * (p_error + 3 * kUnit) + kVanishes) * (std::fabs(dp) + std::fabs(delta)) +
                                            sums * std::fabs(ds);
                    for (int c = 0; c < size; ++c) {
                        dqkv.value[q + c] += scale * ds * qkv[k + c];
                        dqkv.bound[q + c] += scale * ds_error * std::fabs(qkv[k + c]);
                        dqkv.value[k + c] += scale * ds * qkv[q + c];
                        dqkv.bound[k + c] += scale * ds_error * std::fabs(qkv[q + c]);
                        dqkv.value[v + c] += p * g[c];
                        dqkv.bound[v + c] += (p * (p_error + sums) + kVanishes) * std::fabs(g[c]);
                    }
                }
            }
    return dqkv;
}

// Every element within its bound and, as the result is stored in T, half a unit in the last place of the farther end of that.
template <class T>
void check_within_bounds(const std::vector<T>& got, const Wanted& want) {
    REQUIRE(got.size() == want.value.size());
    std::size_t worst = 0;
    double worst_ratio = -1;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double allowed = want.bound[i] + 0.5 * ulp<T>(std::fabs(want.value[i]) + want.bound[i]) + 1e-37;
        const double ratio = std::fabs(widen(got[i]) - want.value[i]) / allowed;
        if (!(ratio <= worst_ratio)) worst = i, worst_ratio = std::isnan(ratio) ? INFINITY : ratio;
    }
    INFO("element " << worst << " is " << widen(got[worst]) << ", want " << want.value[worst] << " within " << want.bound[worst]);
    CHECK(worst_ratio <= 1);
}

template <class T>
struct Run {
    Shape shape;
    std::vector<T> qkv, dout;
    Run(const Shape& shape, unsigned seed, double deviation = 1)
        : shape(shape), qkv(normal<T>(3 * shape.elements(), seed, deviation)), dout(normal<T>(shape.elements(), seed + 1)) {}

    struct Forward { std::vector<T> out; std::vector<float> logsumexp; };
    Forward forward() const {
        const auto input = on_device(qkv);
        const auto out = poisoned<T>(shape.elements());
        const auto logsumexp = poisoned<float>(shape.rows());
        kernels::attention_forward<T>(
            {out.span(), logsumexp.span(), input.span(), shape.batch, shape.seq_len, shape.heads, shape.head_size}, nullptr);
        return {out.download(nullptr), logsumexp.download(nullptr)};
    }
    std::vector<T> backward(const Forward& kept) const {
        const auto input = on_device(qkv), gradient = on_device(dout), out = on_device(kept.out);
        const auto logsumexp = on_device(kept.logsumexp), delta = poisoned<float>(shape.rows());
        const auto dqkv = poisoned<T>(3 * shape.elements());
        kernels::attention_backward<T>({dqkv.span(), delta.span(), gradient.span(), input.span(), out.span(), logsumexp.span(), shape.batch,
                                        shape.seq_len, shape.heads, shape.head_size}, nullptr);
        return dqkv.download(nullptr);
    }
    // What a faultless forward pass keeps, so that the backward pass is judged by itself.
    Forward rounded(const ForwardReference& reference) const {
        Forward kept;
        for (double x : reference.out.value) kept.out.push_back(narrow<T>(x));
        for (double x : reference.logsumexp.value) kept.logsumexp.push_back(float(x));
        return kept;
    }
    void check() const {
        CAPTURE(shape);
        const ForwardReference reference(shape, widen(qkv));
        const Forward got = forward(), kept = rounded(reference);
        check_within_bounds(got.out, reference.out);
        check_within_bounds(got.logsumexp, reference.logsumexp);
        check_within_bounds(backward(kept), backward_reference(shape, widen(dout), widen(qkv), widen(kept.out), widen(kept.logsumexp)));
    }
};

template <class T> bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

struct ThreadCount {  // puts the number of threads back
    int before = omp_get_max_threads();
    ~ThreadCount() { omp_set_num_threads(before); }
};

}  // namespace

TEST_CASE("the reference gradient of attention is the slope of the reference", "[attention]") {
    const Shape shape{2, 2, 4, 5};
    const auto qkv = normal<double>(3 * shape.elements(), 1), dout = normal<double>(shape.elements(), 2);
    const ForwardReference at_point(shape, qkv);
    const Wanted gradient = backward_reference(shape, dout, qkv, at_point.out.value, at_point.logsumexp.value);
    const double step = 1e-5;
    for (std::size_t i = 0; i < qkv.size(); ++i) {
        double loss[2];
        for (int side = 0; side < 2; ++side) {
            auto moved = qkv;
            moved[i] += side ? step : -step;
            loss[side] = dot(ForwardReference(shape, moved).out.value.data(), dout.data(), int(dout.size()));
        }
        // fp64 leaves about 1e-15 * |loss| / step = 1e-9 of a difference; the third derivative adds 1e-10.
        CHECK((loss[1] - loss[0]) / (2 * step) == Approx(gradient.value[i]).epsilon(0).margin(1e-8));
    }
}

TEMPLATE_TEST_CASE("attention equals fp64 at every length", "[attention]", float, bf16) {
    const int seq_len = GENERATE(1, 2, 31, 32, 33, 63, 64, 65, 100, 129, 257);  // about the edges of tiles, and several tiles
    Run<TestType>({seq_len < 100 ? 2 : 1, seq_len < 257 ? 3 : 1, 16, seq_len}, 10 + seq_len).check();
}

TEMPLATE_TEST_CASE("attention equals fp64 at every head size", "[attention]", float, bf16) {
    const int head_size = GENERATE(4, 8, 24, 32, 40, 64, 80, 96, 128, 256);
    if (head_size * sizeof(TestType) % 16 != 0) return;
    Run<TestType>({1, 2, head_size, 70}, 400 + head_size).check();
}

TEMPLATE_TEST_CASE("attention survives scores in the thousands", "[attention]", float, bf16) {
    const int seq_len = GENERATE(1, 97);
    const Run<TestType> run({1, 6, 64, seq_len}, 31, 30.0);
    const ForwardReference reference(run.shape, widen(run.qkv));
    REQUIRE(largest_magnitude(reference.logsumexp.value) > 1000);
    run.check();
}

TEMPLATE_TEST_CASE("attention at the first position is the first value", "[attention]", float, bf16) {
    const Run<TestType> run({2, 3, 16, 40}, 5);
    const auto got = run.forward();
    for (int b = 0; b < run.shape.batch; ++b)
        for (int h = 0; h < run.shape.heads; ++h)
            for (int c = 0; c < run.shape.head_size; ++c)
                CHECK(widen(got.out[run.shape.at(b, 0, h) + c]) == widen(run.qkv[run.shape.at(b, 0, h, 3, 2) + c]));
}

TEMPLATE_TEST_CASE("attention of earlier positions does not depend on later ones", "[attention]", float, bf16) {
    const Shape shape{2, 2, 16, 100};
    const int first_changed = GENERATE(1, 37, 64, 99);
    const Run<TestType> run(shape, 6);
    Run<TestType> changed = run;
    // Large enough that a weight of 2^-126 would show, where exactly 0 is wanted.
    const auto other_qkv = normal<TestType>(3 * shape.elements(), 8, 1e34), other_dout = normal<TestType>(shape.elements(), 9);
    for (int b = 0; b < shape.batch; ++b) {
        const auto first = shape.at(b, first_changed, 0), end = shape.at(b + 1, 0, 0);
        std::copy(other_qkv.begin() + 3 * first, other_qkv.begin() + 3 * end, changed.qkv.begin() + 3 * first);
        std::copy(other_dout.begin() + first, other_dout.begin() + end, changed.dout.begin() + first);
    }
    const auto before = run.forward(), after = changed.forward();
    const auto gradient_before = run.backward(before), gradient_after = changed.backward(after);
    for (int b = 0; b < shape.batch; ++b)
        for (int h = 0; h < shape.heads; ++h)
            for (int t = 0; t < shape.seq_len; ++t) {
                const auto out = shape.at(b, t, h), dq = shape.at(b, t, h, 3, 0), row = shape.row(b, h, t);
                const bool same = std::memcmp(&before.out[out], &after.out[out], shape.head_size * sizeof(TestType)) == 0 &&
                                  before.logsumexp[row] == after.logsumexp[row] &&
                                  std::memcmp(&gradient_before[dq], &gradient_after[dq], shape.head_size * sizeof(TestType)) == 0;
                CAPTURE(b, h, t, first_changed);
                CHECK(same == (t < first_changed));
            }
}

TEMPLATE_TEST_CASE("attention gives the same bits whatever the number of threads", "[attention]", float, bf16) {
    const Run<TestType> run({1, 3, 16, 150}, 12);
    const ThreadCount restore;
    omp_set_num_threads(1);
    const auto kept = run.forward();
    const auto gradient = run.backward(kept);
    for (int threads : {1, 2, 3, 8}) {  // three heads leave threads idle at 2 and 8
        CAPTURE(threads);
        omp_set_num_threads(threads);
        const auto again = run.forward();
        CHECK(same_bits(kept.out, again.out));
        CHECK(same_bits(kept.logsumexp, again.logsumexp));
        CHECK(same_bits(gradient, run.backward(kept)));
    }
}

TEST_CASE("attention refuses what it cannot do", "[attention]") {
    const auto forward = [](int batch, int seq_len, int heads, int head_size, int short_out = 0, int short_logsumexp = 0, int short_qkv = 0) {
        const DeviceArray<float> out(8 * 260), logsumexp(8), qkv(3 * 8 * 260);
        const std::size_t rows = std::size_t(batch) * seq_len * heads, elements = rows * head_size;
        kernels::attention_forward<float>({out.span().first(elements - short_out), logsumexp.span().first(rows - short_logsumexp),
                                           qkv.span().first(3 * elements - short_qkv), batch, seq_len, heads, head_size}, nullptr);
    };
    CHECK_NOTHROW(forward(1, 2, 2, 256));
    CHECK_THROWS_WITH(forward(1, 2, 2, 260), Catch::Contains("head_size is 260"));
    CHECK_THROWS_WITH(forward(1, 2, 2, 6), Catch::Contains("head_size is 6"));
    CHECK_THROWS_WITH(forward(1, 2, 2, 0), Catch::Contains("head_size is 0"));
    CHECK_THROWS_WITH(forward(1, 0, 2, 8), Catch::Contains("seq_len is 0"));
    CHECK_THROWS_WITH(forward(0, 2, 2, 8), Catch::Contains("batch is 0"));
    CHECK_THROWS_WITH(forward(1, 2, 0, 8), Catch::Contains("heads is 0"));
    CHECK_THROWS_WITH(forward(1, 2, 2, 8, 1), Catch::Contains("attention's out is 31"));
    CHECK_THROWS_WITH(forward(1, 2, 2, 8, 0, 1), Catch::Contains("attention's logsumexp is 3"));
    CHECK_THROWS_WITH(forward(1, 2, 2, 8, 0, 0, 1), Catch::Contains("attention's qkv is 95"));

    const DeviceArray<bf16> qkv(3 * 16), dqkv(3 * 16), dout(16), out(16);
    const DeviceArray<float> logsumexp(2), delta(2);
    AttentionBackward<bf16> op{dqkv.span(), delta.span(), dout.span(), qkv.span(), out.span(), logsumexp.span(), 1, 2, 1, 8};
    const auto refused = [&](auto change) {
        AttentionBackward<bf16> changed = op;
        change(changed);
        std::string message;
        try { kernels::attention_backward<bf16>(changed, nullptr); } catch (const Error& error) { message = error.what(); }
        return message;
    };
    CHECK(refused([](auto&) {}).empty());
    CHECK_THAT(refused([](auto& op) { op.head_size = 4; }), Catch::Contains("head_size is 4"));  // half a pack of bf16
    CHECK_THAT(refused([](auto& op) { op.dqkv = op.dqkv.first(47); }), Catch::Contains("attention's dqkv is 47"));
    CHECK_THAT(refused([](auto& op) { op.dout = op.dout.first(15); }), Catch::Contains("attention's dout is 15"));
    CHECK_THAT(refused([](auto& op) { op.out = op.out.first(15); }), Catch::Contains("attention's out is 15"));
    CHECK_THAT(refused([](auto& op) { op.qkv = op.qkv.first(47); }), Catch::Contains("attention's qkv is 47"));
    CHECK_THAT(refused([](auto& op) { op.logsumexp = op.logsumexp.first(1); }), Catch::Contains("attention's logsumexp is 1"));
    CHECK_THAT(refused([](auto& op) { op.delta = op.delta.first(1); }), Catch::Contains("attention's delta is 1"));
}
