// methods_test.cpp - every attention implementation of the build compared with fp64, through class Attention
//
// Implementations on tensor cores round the weights p and ds to bf16 between their products, and so does the rounded
// reference here. The error of a result, over all elements, may be twice that of the rounded reference plus the
// rounding errors of sums of head_size and seq_len floats.
#include <algorithm>
#include <functional>
#include <numeric>

#include "test/kernels/attention/passes.h"
#include "test/support/support.h"

using namespace test;

namespace {

// Index of the first element of position t of a head, in a tensor with `parts` parts per position.
std::size_t at(const AttentionShape& s, int b, int t, int h, int parts = 1, int part = 0) {
    return (((std::size_t(b) * s.seq_len + t) * parts + part) * s.heads + h) * s.head_size;
}

double exact(double x) { return x; }
double as_bf16(double x) { return widen(narrow<bf16>(x)); }

// The formulas of attention.h; `rounded` is applied to the weights before products, and to every stored result except
// the statistics.
Results reference(const AttentionShape& s, const std::vector<double>& qkv, const std::vector<double>& dout,
                  const std::function<double(double)>& rounded) {
    Results r{std::vector<double>(elements_of(s)), std::vector<double>(rows_of(s)),
              std::vector<double>(3 * elements_of(s))};
    const double scale = 1 / std::sqrt(double(s.head_size));
    const auto dot = [&](const double* a, const double* b) {
        double sum = 0;
        for (int c = 0; c < s.head_size; ++c) sum += a[c] * b[c];
        return sum;
    };
    for (int b = 0; b < s.batch; ++b)
        for (int h = 0; h < s.heads; ++h)
            for (int i = 0; i < s.seq_len; ++i) {
                std::vector<double> score;
                for (int j = 0; j <= i; ++j)
                    score.push_back(scale * dot(&qkv[at(s, b, i, h, 3, 0)], &qkv[at(s, b, j, h, 3, 1)]));
                const double largest = *std::max_element(score.begin(), score.end());
                double sum = 0;
                for (double x : score) sum += std::exp(x - largest);
                const double logsumexp = largest + std::log(sum);
                r.logsumexp[(std::size_t(b) * s.heads + h) * s.seq_len + i] = logsumexp;
                double* const out = &r.out[at(s, b, i, h)];
                for (int j = 0; j <= i; ++j)
                    for (int c = 0; c < s.head_size; ++c)
                        out[c] += rounded(std::exp(score[j] - largest)) / sum * qkv[at(s, b, j, h, 3, 2) + c];
                for (int c = 0; c < s.head_size; ++c) out[c] = rounded(out[c]);
                const double* const g = &dout[at(s, b, i, h)];
                const double delta = dot(g, out);
                for (int j = 0; j <= i; ++j) {
                    const double p = std::exp(score[j] - logsumexp),
                                 ds = rounded(p * (dot(g, &qkv[at(s, b, j, h, 3, 2)]) - delta));
                    for (int c = 0; c < s.head_size; ++c) {
                        r.dqkv[at(s, b, i, h, 3, 0) + c] += scale * ds * qkv[at(s, b, j, h, 3, 1) + c];
                        r.dqkv[at(s, b, j, h, 3, 1) + c] += scale * ds * qkv[at(s, b, i, h, 3, 0) + c];
                        r.dqkv[at(s, b, j, h, 3, 2) + c] += rounded(p) * g[c];
                    }
                }
            }
    for (double& x : r.dqkv) x = rounded(x);
    return r;
}

double norm(const std::vector<double>& a) { return std::sqrt(std::inner_product(a.begin(), a.end(), a.begin(), 0.0)); }
double distance(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return std::sqrt(sum);
}

}  // namespace

// As close as rounding allows, and bit-identical when repeated.
TEST_CASE("every method of attention follows fp64", "[attention][attention_methods][large]") {
    const auto method = GENERATE(AttentionMethod::plain, AttentionMethod::flash, AttentionMethod::cudnn);
    if (!is_built(method)) return;
    skip_without_device();
    // Lengths around tile boundaries, including an odd one.
    const auto shape = GENERATE(AttentionShape{2, 64, 3, 64}, AttentionShape{1, 17, 2, 64},
                                AttentionShape{1, 129, 2, 64}, AttentionShape{1, 200, 1, 128},
                                AttentionShape{2, 77, 1, 80});
    const auto qkv = normal<bf16>(3 * elements_of(shape), 31), dout = normal<bf16>(elements_of(shape), 32);
    const Results want = reference(shape, widen(qkv), widen(dout), exact),
                  rounded = reference(shape, widen(qkv), widen(dout), as_bf16);
    const double sums = (2.0 * shape.head_size + shape.seq_len) * 0x1p-24;
    const double out_bound = 2 * distance(rounded.out, want.out) + sums * norm(want.out);
    const double dqkv_bound = 2 * distance(rounded.dqkv, want.dqkv) + sums * norm(want.dqkv);
    CAPTURE(int(method), shape.batch, shape.seq_len, shape.heads, shape.head_size);
    Attention attention = make_attention(method);
    Passes run(shape, qkv, dout), again(shape, qkv, dout);
    run.both_passes(attention);
    const Results got = run.results();
    CHECK(distance(got.out, want.out) <= out_bound);
    CHECK(distance(got.dqkv, want.dqkv) <= dqkv_bound);
    // A score is a float sum of head_size exact products, and the sum in the (natural) logarithm has seq_len terms.
    // Shape (batch, heads, seq_len).
    CHECK(largest_error(run.logsumexp.download(nullptr),
                        want.logsumexp) <= sums * (1 + largest_magnitude(want.logsumexp)));
    again.both_passes(attention);
    CHECK(again.results().dqkv == got.dqkv);
    CHECK(again.results().out == got.out);
}
