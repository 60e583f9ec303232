// attention_reference.h - shared by the tests of attention: the formulas in fp64, bounds of float rounding errors, and
// checks that apply to every method
#pragma once
#include <algorithm>
#include <cstring>

#include "kernels/attention/attention.h"
#include "test/support/support.h"

namespace test::attention {

using kernels::AttentionBackward;
using kernels::AttentionForward;

inline constexpr double kUnit = 0x1p-24;     // largest relative error of one rounding to float
inline constexpr double kVanishes = 0x1p-125;  // a smaller exponential may be any number from 0 to this

struct Extents : kernels::AttentionShape {
    Extents(int batch, int heads, int head_size, int seq_len) : AttentionShape{batch, seq_len, heads, head_size} {}
    // Index of the first element of q, k or v (part 0, 1, 2) of a position in qkv; with parts = 1, of a position in
    // out.
    std::size_t at(int b, int t, int h, int parts = 1, int part = 0) const {
        return (((std::size_t(b) * seq_len + t) * parts + part) * heads + h) * head_size;
    }
    std::size_t row(int b, int h, int t) const { return (std::size_t(b) * heads + h) * seq_len + t; }
};

inline std::ostream& operator<<(std::ostream& to, const Extents& s) {
    return to << "batch " << s.batch << " heads " << s.heads << " head_size " << s.head_size << " seq_len "
              << s.seq_len;
}

inline double dot(const double* a, const double* b, int size) {
    double sum = 0;
    for (int i = 0; i < size; ++i) sum += a[i] * b[i];
    return sum;
}
inline double dot_of_magnitudes(const double* a, const double* b, int size) {
    double sum = 0;
    for (int i = 0; i < size; ++i) sum += std::fabs(a[i] * b[i]);
    return sum;
}

// The scores of one query with the keys that it attends to, and a bound of their float error: a sum of head_size
// products in any order, the scaling, and the effect of rounding the argument of exp to float (the error of the
// hardware's exp is |x| units in the last place, |x| <= 2 max |s|).
struct Scores {
    std::vector<double> s;
    double error = 0;
    Scores(const Extents& shape, const std::vector<double>& qkv, int b, int h, int query) {
        const double scale = 1 / std::sqrt(double(shape.head_size));
        for (int key = 0; key <= query; ++key) {
            const double *q = &qkv[shape.at(b, query, h, 3, 0)], *k = &qkv[shape.at(b, key, h, 3, 1)];
            s.push_back(scale * dot(q, k, shape.head_size));
            error = std::max(error, (shape.head_size + 12) * kUnit * scale * dot_of_magnitudes(q, k, shape.head_size));
        }
    }
};

struct Expected {
    std::vector<double> value, bound;  // bound: maximum error of float arithmetic, before the result is rounded to T
    explicit Expected(std::size_t size) : value(size), bound(size) {}
};

// How a method rounds weights before products.
using RoundWeight = double (*)(double);
inline double unrounded(double x) { return x; }
inline double rounded_to_bf16(double x) { return widen(narrow<bf16>(x)); }

struct ForwardReference {
    Expected out, logsumexp;
    ForwardReference(const Extents& shape, const std::vector<double>& qkv, RoundWeight weight = unrounded)
        : out(shape.elements()), logsumexp(shape.rows()) {
        for (int b = 0; b < shape.batch; ++b)
            for (int h = 0; h < shape.heads; ++h)
                for (int query = 0; query < shape.seq_len; ++query) {
                    const Scores scores(shape, qkv, b, h, query);
                    const double largest = *std::max_element(scores.s.begin(), scores.s.end());
                    double sum = 0;
                    for (double s : scores.s) sum += std::exp(s - largest);
                    const std::size_t row = shape.row(b, h, query);
                    // query + 1 terms in numerator and denominator, exp, rescaling
                    const double sums = (2 * query + 20) * kUnit;
                    logsumexp.value[row] = largest + std::log(sum);
                    logsumexp.bound[row] = scores.error + sums +
                                           4 * kUnit * (std::fabs(largest) + std::fabs(logsumexp.value[row]));
                    for (int key = 0; key <= query; ++key) {
                        const double p = weight(std::exp(scores.s[key] - largest)) / sum;
                        for (int c = 0; c < shape.head_size; ++c) {
                            const double v = qkv[shape.at(b, key, h, 3, 2) + c];
                            out.value[shape.at(b, query, h) + c] += p * v;
                            out.bound[shape.at(b, query,
                                               h) + c] += ((2 * scores.error + sums) * p + kVanishes) * std::fabs(v);
                        }
                    }
                }
    }
};

// The contract's formulas in fp64, using the given `logsumexp` for p and the given `out` for delta.
inline Expected backward_reference(const Extents& shape, const std::vector<double>& dout,
                                   const std::vector<double>& qkv,
                                   const std::vector<double>& out, const std::vector<double>& logsumexp,
                                   RoundWeight weight = unrounded) {
    Expected dqkv(3 * shape.elements());
    const int size = shape.head_size;
    const double scale = 1 / std::sqrt(double(size)), product = (size + 3) * kUnit, sums = (shape.seq_len + 6) * kUnit;
    for (int b = 0; b < shape.batch; ++b)
        for (int h = 0; h < shape.heads; ++h)
            for (int query = 0; query < shape.seq_len; ++query) {
                const Scores scores(shape, qkv, b, h, query);
                const double *g = &dout[shape.at(b, query, h)], *o = &out[shape.at(b, query, h)];
                const double lse = logsumexp[shape.row(b, h, query)],
                             p_error = scores.error + 4 * kUnit * std::fabs(lse) + 10 * kUnit;
                const double delta = dot(g, o, size), delta_error = product * dot_of_magnitudes(g, o, size);
                const std::size_t q = shape.at(b, query, h, 3, 0);
                for (int key = 0; key <= query; ++key) {
                    const std::size_t k = shape.at(b, key, h, 3, 1), v = shape.at(b, key, h, 3, 2);
                    const double p = std::exp(scores.s[key] - lse), dp = dot(g, &qkv[v], size), ds = p * (dp - delta);
                    const double dp_error = delta_error + product * dot_of_magnitudes(g, &qkv[v], size);
                    const double ds_error = p * dp_error +
                                            (p * (p_error + 3 * kUnit) + kVanishes) *
                                                (std::fabs(dp) + std::fabs(delta)) +
                                            sums * std::fabs(ds);
                    const double p_weight = weight(p), ds_weight = weight(ds);
                    for (int c = 0; c < size; ++c) {
                        dqkv.value[q + c] += scale * ds_weight * qkv[k + c];
                        dqkv.bound[q + c] += scale * ds_error * std::fabs(qkv[k + c]);
                        dqkv.value[k + c] += scale * ds_weight * qkv[q + c];
                        dqkv.bound[k + c] += scale * ds_error * std::fabs(qkv[q + c]);
                        dqkv.value[v + c] += p_weight * g[c];
                        dqkv.bound[v + c] += (p * (p_error + sums) + kVanishes) * std::fabs(g[c]);
                    }
                }
            }
    return dqkv;
}

// One problem, run with Method::forward(AttentionForward<T>) and Method::backward(AttentionBackward<T>).
template <class T, class Method>
struct Run {
    using Type = T;
    Extents shape;
    std::vector<T> qkv, dout;
    Run(const Extents& shape, unsigned seed, double deviation = 1)
        : shape(shape),
          qkv(normal<T>(3 * shape.elements(), seed, deviation)),
          dout(normal<T>(shape.elements(), seed + 1)) {}

    struct Forward { std::vector<T> out; std::vector<float> logsumexp; };
    Forward forward() const {
        const auto input = on_device(qkv);
        const auto out = poisoned<T>(shape.elements());
        const auto logsumexp = poisoned<float>(shape.rows());
        Method::forward(AttentionForward<T>{out.span(), logsumexp.span(), input.span(), shape});
        return {out.download(nullptr), logsumexp.download(nullptr)};
    }
    std::vector<T> backward(const Forward& kept) const {
        const auto input = on_device(qkv), gradient = on_device(dout), out = on_device(kept.out);
        const auto logsumexp = on_device(kept.logsumexp), delta = poisoned<float>(shape.rows());
        const auto dqkv = poisoned<T>(3 * shape.elements());
        Method::backward(AttentionBackward<T>{dqkv.span(), delta.span(), gradient.span(), input.span(), out.span(),
                                              logsumexp.span(), shape});
        return dqkv.download(nullptr);
    }
    // The exact outputs of the forward pass, rounded to T, so that the backward pass is checked separately.
    Forward rounded(const ForwardReference& reference) const {
        Forward kept;
        for (double x : reference.out.value) kept.out.push_back(narrow<T>(x));
        for (double x : reference.logsumexp.value) kept.logsumexp.push_back(float(x));
        return kept;
    }
};

// Checks of bit-identical results that apply to every method.

template <class Run>
void check_first_position_is_first_value(const Run& run) {
    const auto got = run.forward();
    for (int b = 0; b < run.shape.batch; ++b)
        for (int h = 0; h < run.shape.heads; ++h)
            for (int c = 0; c < run.shape.head_size; ++c)
                CHECK(widen(got.out[run.shape.at(b, 0, h) + c]) == widen(run.qkv[run.shape.at(b, 0, h, 3, 2) + c]));
}

// Changes positions from `first_changed` on to numbers so large that a weight of 2^-126, where exactly 0 is required,
// would be visible.
template <class Run>
void check_earlier_positions_are_independent(const Extents& shape, int first_changed, double deviation = 1e34) {
    using T = typename Run::Type;
    const Run run(shape, 6);
    Run changed = run;
    const auto other_qkv = normal<T>(3 * shape.elements(), 8, deviation), other_dout = normal<T>(shape.elements(), 9);
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
                const bool same = std::memcmp(&before.out[out], &after.out[out], shape.head_size * sizeof(T)) == 0 &&
                                  before.logsumexp[row] == after.logsumexp[row] &&
                                  std::memcmp(&gradient_before[dq], &gradient_after[dq],
                                              shape.head_size * sizeof(T)) == 0;
                CAPTURE(b, h, t, first_changed);
                CHECK(same == (t < first_changed));
            }
}

template <class T, class Method> void check_refused(int head_size) {
    using std::pair;
    using Forward = AttentionForward<T>;
    using Backward = AttentionBackward<T>;
    const device::Array<T> in(std::size_t(3 * 4 * head_size)), out(in.size());
    const device::Array<float> of_rows(4), of_rows_out(4);
    const std::size_t third = in.size() / 3;
    const auto forward = [](const Forward& op) { Method::forward(op); };
    const auto backward = [](const Backward& op) { Method::backward(op); };
    const Forward op{out.span().first(third), of_rows_out.span(), in.span(), {1, 2, 2, head_size}};
    CHECK_NOTHROW(forward(op));
    check_sizes(op, forward, pair("attention's out", &Forward::out),
                pair("attention's logsumexp", &Forward::logsumexp), pair("attention's qkv", &Forward::qkv));
    using kernels::AttentionShape;
    for (const auto& [number, said] : {pair(&AttentionShape::batch, "batch is 0"),
                                       {&AttentionShape::seq_len, "seq_len is 0"},
                                       {&AttentionShape::heads, "heads is 0"},
                                       {&AttentionShape::head_size, "head_size is 0"}}) {
        Forward changed = op;
        changed.shape.*number = 0;
        CHECK_THROWS_WITH(forward(changed), Contains(said));
    }
    const auto values = in.span().first(third);
    const Backward back{out.span(), of_rows_out.span(), values, in.span(), values, of_rows.span(),
                        {1, 2, 2, head_size}};
    CHECK_NOTHROW(backward(back));
    check_sizes(back, backward, pair("attention's dqkv", &Backward::dqkv), pair("attention's delta", &Backward::delta),
                pair("attention's dout", &Backward::dout), pair("attention's qkv", &Backward::qkv),
                pair("attention's out", &Backward::out), pair("attention's logsumexp", &Backward::logsumexp));
    Backward changed = back;
    changed.shape.head_size = 20;  // neither whole packs of bf16 nor a size of tensor cores
    if (sizeof(T) == 2) CHECK_THROWS_WITH(backward(changed), Contains("head_size is 20"));
}

}  // namespace test::attention
