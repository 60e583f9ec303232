// methods_test.cpp - every implementation of attention that the build has, against fp64, through class
// Attention
//
// Implementations on tensor cores round the weights p and ds to bf16 between their products. So does the rounded
// reference here, and a result may be off from fp64 by twice what that one is, measured over all elements, and by what
// sums of head_size and seq_len floats lose.
#include <algorithm>
#include <functional>
#include <numeric>

#if defined(TRAIN_GPT2_CUDA)
#include <cuda_runtime.h>
#endif

#include "kernels/attention/build.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "test/support/support.h"

using namespace test;
using kernels::Attention;
using kernels::AttentionMethod;
using kernels::AttentionShape;

namespace {

std::size_t rows_of(const AttentionShape& s) { return std::size_t(s.batch) * s.heads * s.seq_len; }
std::size_t elements_of(const AttentionShape& s) { return rows_of(s) * s.head_size; }
// Where position t of a head starts, among `parts` tensors side by side.
std::size_t at(const AttentionShape& s, int b, int t, int h, int parts = 1, int part = 0) {
    return (((std::size_t(b) * s.seq_len + t) * parts + part) * s.heads + h) * s.head_size;
}

double exact(double x) { return x; }
double as_bf16(double x) { return widen(narrow<bf16>(x)); }

struct Results {
    std::vector<double> out, logsumexp, dqkv;
};

// The formulas of attention.h; `rounded` is what the weights go through before they multiply, and every stored result
// but the statistics.
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

struct Passes {
    AttentionShape shape;
    device::Array<bf16> qkv, dout, out, dqkv;
    device::Array<float> logsumexp, delta;
    Passes(const AttentionShape& s, const std::vector<bf16>& host_qkv, const std::vector<bf16>& host_dout)
        : shape(s),
          qkv(on_device(host_qkv)),
          dout(on_device(host_dout)),
          out(poisoned<bf16>(elements_of(s))),
          dqkv(poisoned<bf16>(3 * elements_of(s))),
          logsumexp(poisoned<float>(rows_of(s))),
          delta(poisoned<float>(rows_of(s))) {}
    void both_passes(Attention& attention, device::StreamRef stream = nullptr) {
        attention.forward<bf16>(
            {out.span(), logsumexp.span(), qkv.span(), shape.batch, shape.seq_len, shape.heads, shape.head_size},
            stream);
        attention.backward<bf16>({dqkv.span(), delta.span(), dout.span(), qkv.span(), out.span(), logsumexp.span(),
                                  shape.batch, shape.seq_len, shape.heads, shape.head_size}, stream);
    }
    Results results() const {
        return {widen(out.download(nullptr)), widen(logsumexp.download(nullptr)), widen(dqkv.download(nullptr))};
    }
};

// Whether the build has the method and the machine the device; says so where not. A CPU's only implementation is tested
// as plain.
bool runs_here(AttentionMethod method) {
    const kernels::AttentionBuild build = kernels::attention_build();
    if (!build.choice ? method != AttentionMethod::plain : method == AttentionMethod::cudnn && !build.cudnn)
        return false;
    try {
        device::open(0);
        return true;
    } catch (const Error& error) {
        WARN("skipped: " << error.what());
        return false;
    }
}

Attention make_attention(AttentionMethod method) {
    return Attention({.method = kernels::attention_build().choice ? method : AttentionMethod::automatic});
}

void check_near_fp64(AttentionMethod method) {
    if (!runs_here(method)) return;
    // Lengths about the edges of tiles, an odd one among them.
    const auto shape = GENERATE(AttentionShape{2, 64, 3, 64}, AttentionShape{1, 17, 2, 64},
                                AttentionShape{1, 129, 2, 64}, AttentionShape{1, 200, 1, 128},
                                AttentionShape{2, 77, 1, 80});
    const auto qkv = normal<bf16>(3 * elements_of(shape), 31), dout = normal<bf16>(elements_of(shape), 32);
    const Results want = reference(shape, widen(qkv), widen(dout), exact),
                  rounded = reference(shape, widen(qkv), widen(dout), as_bf16);
    const double sums = (2.0 * shape.head_size + shape.seq_len) * 0x1p-24;
    const double out_bound = 2 * distance(rounded.out, want.out) + sums * norm(want.out);
    const double dqkv_bound = 2 * distance(rounded.dqkv, want.dqkv) + sums * norm(want.dqkv);
    CAPTURE(shape.batch, shape.seq_len, shape.heads, shape.head_size);
    Attention attention = make_attention(method);
    Passes run(shape, qkv, dout), again(shape, qkv, dout);
    run.both_passes(attention);
    const Results got = run.results();
    CHECK(distance(got.out, want.out) <= out_bound);
    CHECK(distance(got.dqkv, want.dqkv) <= dqkv_bound);
    // A score is a float sum of head_size exact products, and the logarithm's sum one of seq_len terms: natural,
    // (batch, heads, seq_len).
    CHECK(largest_error(run.logsumexp.download(nullptr),
                        want.logsumexp) <= sums * (1 + largest_magnitude(want.logsumexp)));
    again.both_passes(attention);
    CHECK(again.results().dqkv == got.dqkv);
    CHECK(again.results().out == got.out);
}

}  // namespace

// As near as rounding lets it, and the same bits again.
TEST_CASE("plain attention follows fp64", "[attention][attention_methods]") { check_near_fp64(AttentionMethod::plain); }
TEST_CASE("flash attention follows fp64", "[attention][attention_methods]") { check_near_fp64(AttentionMethod::flash); }
TEST_CASE("cuDNN attention follows fp64", "[attention][attention_methods]") { check_near_fp64(AttentionMethod::cudnn); }

#if defined(TRAIN_GPT2_CUDA)
TEST_CASE("attention can be captured in a CUDA graph and replayed", "[attention][attention_methods]") {
    const AttentionShape shape{2, 128, 2, 64};
    const auto qkv = normal<bf16>(3 * elements_of(shape), 41), dout = normal<bf16>(elements_of(shape), 42);
    for (AttentionMethod method : {AttentionMethod::plain, AttentionMethod::flash, AttentionMethod::cudnn}) {
        CAPTURE(int(method));
        if (!runs_here(method)) continue;
        Attention attention = make_attention(method);
        Passes direct(shape, qkv, dout), captured(shape, qkv, dout);
        direct.both_passes(attention);  // plans, and takes the workspace
        device::sync(nullptr);
        const device::Stream stream;
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        captured.both_passes(attention, stream);
        REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
        REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
        for (int replay = 0; replay < 2; ++replay) REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
        stream.sync();
        CHECK(captured.results().out == direct.results().out);
        CHECK(captured.results().dqkv == direct.results().dqkv);
        cudaGraphExecDestroy(executable);
        cudaGraphDestroy(graph);
    }
}
#endif
