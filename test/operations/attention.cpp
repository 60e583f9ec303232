// attention.cpp - causal self-attention and its gradient: the plain kernels (on a CPU the tiled ones), and flash
// attention and cuDNN in builds that have them
#include "kernels/attention/attention.h"

#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/check.h"
#include "kernels/attention/implementations.h"
#include "test/operations/operation.h"
#include "test/operations/text_tokens.h"

namespace operations::attention_operation {
namespace {

struct AttentionSizes : kernels::AttentionShape {
    int document;  // mean length; 0: rows are whole
    std::vector<int> starts = random_starts(batch, seq_len, document);
    explicit AttentionSizes(const Shape& s)
        : AttentionShape{s[0], s[3], s[1], s[2], s.size() > 6 && s[6] > 0}, document(s.size() > 6 ? s[6] : 0) {}
    double flops() const { return 2.0 * double(rows()) * seq_len * head_size; }
    int first_key(std::size_t sequence, int query) const {
        return starts[sequence / heads * seq_len + std::size_t(query)];
    }
    Fill fill_of_starts() const { return {.first = {starts.begin(), starts.end()}}; }
    // Index of the first element of query, key or value (part 0, 1, 2) of a position in qkv; with parts = 1, of a
    // position in out.
    std::size_t at(std::size_t sequence, int t, int parts = 1, int part = 0) const {
        return (((sequence / heads * seq_len + t) * parts + part) * heads + sequence % heads) * head_size;
    }
};

template <class N, class A, class B>
N dot(A a, std::size_t a_at, B b, std::size_t b_at, int size) {
    N sum = 0;
    for (int c = 0; c < size; ++c) sum += N(a[a_at + c]) * N(b[b_at + c]);
    return sum;
}

// A weight that is rounded to bf16. Many of them are summed, so each counts with a standard deviation of half a unit in
// the last place, its maximum error.
template <class V> typename V::Number rounded_weight(const V& v, const typename V::Number& weight) {
    return v.with_error(weight, ulp<bf16>(double(weight)));
}

// The kernels reject head sizes whose rows are not whole packs of 16 bytes.
template <class T> bool whole_packs(const Shape& shape) { return shape[2] * sizeof(T) % 16 == 0; }

template <class T>
struct AttentionForward : Operation {
    AttentionSizes s{shape};
    Tensor<T> qkv = input<T>("qkv", 3 * s.elements(), {.deviation = double(shape[4])});
    Tensor<T> out = output<T>("out", s.elements());
    Tensor<float> logsumexp = output<float>("logsumexp", s.rows());
    bool rounds_weights = false;  // to bf16 before the product with the values, as on tensor cores
    std::optional<Tensor<int>> starts{};

    explicit AttentionForward(const Shape& shape) : Operation(shape) {
        if (s.document > 0) starts = input<int>("starts", s.starts.size(), s.fill_of_starts());
        flops = s.flops();
        bytes = 4.0 * s.elements() * sizeof(T);
    }
    static bool applies(const Shape& shape) { return whole_packs<T>(shape); }
    kernels::AttentionForward<T> op() { return {out, logsumexp, qkv, s, if_any(starts)}; }
    void run(device::StreamRef stream) override { kernels::attention_forward<T>(op(), stream); }
    template <class V> void formula(V& v) const {  // one query at a time, two passes over its keys
        using N = typename V::Number;
        const auto x = v[qkv], y = v[out];
        v.each(s.sequences(), [=, &v, s = s, rounds = rounds_weights, lse = v[logsumexp]](std::size_t sequence) {
            const N scale = N(1) / sqrt(N(s.head_size));
            std::vector<N> p(s.seq_len), sums(s.head_size);
            for (int i = 0; i < s.seq_len; ++i) {
                N maximum = -INFINITY, sum = 0;
                const int first = s.first_key(sequence, i);
                for (int j = first; j <= i; ++j) {
                    p[j] = dot<N>(x, s.at(sequence, i, 3, 0), x, s.at(sequence, j, 3, 1), s.head_size) * scale;
                    maximum = maximum < p[j] ? p[j] : maximum;
                }
                for (int j = first; j <= i; ++j) sum += p[j] = exp(p[j] - maximum);
                std::fill(sums.begin(), sums.end(), N(0));
                for (int j = first; j <= i; ++j) {
                    const N weight = rounds ? rounded_weight(v, p[j]) : p[j];
                    for (int c = 0; c < s.head_size; ++c) sums[c] += weight * N(x[s.at(sequence, j, 3, 2) + c]);
                }
                for (int c = 0; c < s.head_size; ++c) y[s.at(sequence, i) + c] = sums[c] / sum;
                lse[sequence * s.seq_len + i] = maximum + log(sum);
            }
        });
    }
};

template <class T>
struct AttentionBackward : Operation {
    AttentionSizes s{shape};
    Tensor<T> dout = input<T>("dout", s.elements());
    Tensor<T> qkv = input<T>("qkv", 3 * s.elements(), {.deviation = double(shape[4])});
    Tensor<T> out = input<T>("out", s.elements());
    Tensor<float> logsumexp =
        input<float>("logsumexp", s.rows(), {.deviation = 0.1, .mean = std::log(s.seq_len) + 0.5});
    Tensor<T> dqkv = output<T>("dqkv", 3 * s.elements());
    Tensor<float> delta = scratch<float>("delta", s.rows());
    bool rounds_weights = false;
    std::optional<Tensor<int>> starts{};

    explicit AttentionBackward(const Shape& shape) : Operation(shape) {
        if (s.document > 0) starts = input<int>("starts", s.starts.size(), s.fill_of_starts());
        flops = 2.5 * s.flops();
        bytes = 8.0 * s.elements() * sizeof(T);
        weights = {{dout.number, "out"}};
        // With scores in the thousands the slope's tolerance would be as large as the slope.
        if (shape[4] == 1) gradients = {{dqkv.number, "qkv", false}};
    }
    static bool applies(const Shape& shape) { return whole_packs<T>(shape); }
    kernels::AttentionBackward<T> op() { return {dqkv, delta, dout, qkv, out, logsumexp, s, if_any(starts)}; }
    void run(device::StreamRef stream) override { kernels::attention_backward<T>(op(), stream); }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        const auto x = v[qkv], d = v[dout], y = v[out], dx = v[dqkv];
        const auto stored = [&v, rounds = rounds_weights](const N& weight) {
            return rounds ? rounded_weight(v, weight) : weight;
        };
        v.each(s.sequences(), [=, s = s, lse = v[logsumexp]](std::size_t sequence) {
            const N scale = N(1) / sqrt(N(s.head_size));
            std::vector<N> sums(std::size_t(3) * s.seq_len * s.head_size);  // of dq, dk and dv
            const auto sum = [&](int part, int t) { return &sums[(std::size_t(part) * s.seq_len + t) * s.head_size]; };
            for (int i = 0; i < s.seq_len; ++i) {
                const std::size_t q = s.at(sequence, i, 3, 0), o = s.at(sequence, i);
                const N delta_i = dot<N>(d, o, y, o, s.head_size);
                for (int j = s.first_key(sequence, i); j <= i; ++j) {
                    const std::size_t k = s.at(sequence, j, 3, 1), value = s.at(sequence, j, 3, 2);
                    const N p = exp(dot<N>(x, q, x, k, s.head_size) * scale - N(lse[sequence * s.seq_len + i]));
                    const N ds = stored(p * (dot<N>(d, o, x, value, s.head_size) - delta_i)), weight = stored(p);
                    for (int c = 0; c < s.head_size; ++c) {
                        sum(0, i)[c] += ds * N(x[k + c]);
                        sum(1, j)[c] += ds * N(x[q + c]);
                        sum(2, j)[c] += weight * N(d[o + c]);
                    }
                }
            }
            for (int part = 0; part < 3; ++part)
                for (int t = 0; t < s.seq_len; ++t)
                    for (int c = 0; c < s.head_size; ++c)
                        dx[s.at(sequence, t, 3, part) + c] = part < 2 ? sum(part, t)[c] * scale : sum(part, t)[c];
        });
    }
};

// Whether a bf16-only method supports T and this shape.
template <class T>
bool can(kernels::AttentionMethod method, const Shape& s) {
    using namespace kernels;
    const auto plans = attention_candidates({}, attention_methods(), dtype_of<T>, {s[0], s[3], s[1], s[2]}, true);
    return std::ranges::find(plans, method, &AttentionPlan::method) != plans.end();
}

template <class T, kernels::AttentionMethod Method, class Base>
struct ByMethod : Base {
    static constexpr bool kCudnn = Method == kernels::AttentionMethod::cudnn,
                          kForward = std::is_same_v<Base, AttentionForward<T>>;
    static constexpr auto kPass = kForward ? kernels::CudnnPass::forward : kernels::CudnnPass::backward_deterministic;
    kernels::Attention attention{{.method = Method}};
    kernels::CudnnAttention cudnn;
    const int plan = this->shape.size() > 5 ? this->shape[5] : 0;  // of cuDNN's heuristics
    explicit ByMethod(const Shape& shape) : Base(shape) { this->rounds_weights = true; }
    static bool applies(const Shape& shape) { return can<T>(Method, shape); }
    bool runs_here() override {
        return !kCudnn || (cudnn.plans(this->s, kPass) > plan && cudnn.refusal(this->s, kPass, plan).empty());
    }
    void run(device::StreamRef stream) override {
        const auto op = this->op();
        if constexpr (kCudnn && std::is_same_v<T, bf16>) {
            check_attention(op);
            if constexpr (kForward) cudnn.forward(op, plan, stream);
            else cudnn.backward(op, kPass, plan, stream);
        } else if constexpr (kForward) attention.template forward<T>(op, stream);
        else attention.template backward<T>(op, stream);
    }
};
template <class T> using FlashForward = ByMethod<T, kernels::AttentionMethod::flash, AttentionForward<T>>;
template <class T> using FlashBackward = ByMethod<T, kernels::AttentionMethod::flash, AttentionBackward<T>>;
template <class T> using CudnnForward = ByMethod<T, kernels::AttentionMethod::cudnn, AttentionForward<T>>;
template <class T> using CudnnBackward = ByMethod<T, kernels::AttentionMethod::cudnn, AttentionBackward<T>>;

// Lengths around tile boundaries, one and several tiles; head sizes: half a pack, odd, common, the largest. The last
// number is the deviation of q, k and v: with 30, scores are in the thousands, where only -infinity masks a key.
const std::vector<Shape> kLengths{{1, 1, 16, 1}, {2, 3, 16, 2}, {2, 3, 16, 31}, {2, 3, 16, 32}, {2, 3, 16, 33},
                                  {2, 3, 16, 63}, {2, 3, 16, 64}, {2, 3, 16, 65}, {1, 3, 16, 100}, {1, 3, 16, 129},
                                  {1, 2, 16, 257}, {1, 2, 4, 70}, {1, 2, 8, 70}, {1, 2, 24, 70}, {1, 2, 32, 70},
                                  {1, 2, 40, 70}, {1, 2, 64, 70}, {1, 2, 80, 70}, {1, 2, 96, 70}, {1, 2, 128, 70},
                                  {1, 1, 256, 37}};
const std::vector<Shape> kSmall{{4, 12, 64, 64, 1}, {8, 4, 32, 128, 1}, {4, 12, 64, 256, 1}},
    kLarge{{64, 12, 64, 1024, 1}};
const std::vector<std::string> kDimensions{"batch", "heads", "head_size", "seq_len", "deviation", "plan", "document"};

// Documents: within a tile, over several, each token one, and with scores in the thousands.
const std::vector<Shape> kEdges = joined(
    joined(with_each(kLengths, {1}), {{1, 6, 64, 97, 30}}),
    joined(with_each({{2, 2, 16, 33, 1}, {2, 3, 16, 257, 1}, {1, 2, 256, 37, 1}}, {0}, {1, 5, 70}),
           {{1, 6, 64, 97, 30, 0, 20}}));

const Registered forward({.name = "attention forward", .tag = "[attention]", .dimensions = kDimensions, .edges = kEdges,
                          .small = kSmall, .large = kLarge, .make = make<AttentionForward>});
const Registered backward({.name = "attention backward", .tag = "[attention]", .dimensions = kDimensions,
                           .edges = kEdges, .small = kSmall, .large = kLarge, .make = make<AttentionBackward>,
                           .forward = make<AttentionForward>});

// Three tiles are the minimum with which a buffer is reused.
const std::vector<Shape> kTensorCoreEdges = joined(with_each(
    {{1, 1, 64, 1}, {2, 3, 64, 2}, {1, 2, 64, 31}, {1, 2, 64, 33}, {1, 2, 64, 63}, {1, 2, 64, 64}, {2, 3, 64, 65},
     {1, 2, 64, 127}, {1, 2, 64, 128}, {1, 2, 64, 129}, {1, 1, 64, 257}, {1, 2, 80, 129}, {1, 2, 96, 129},
     {1, 2, 128, 129}}, {1}), {{1, 6, 64, 97, 30}, {1, 6, 80, 97, 30}});
const std::vector<Shape> kFlashDocuments = joined(
    with_each({{2, 3, 64, 257, 1}, {1, 2, 80, 129, 1}, {1, 2, 96, 129, 1}, {1, 2, 128, 129, 1}}, {0}, {1, 20, 70}),
    {{2, 1, 64, 400, 1, 0, 150}, {1, 6, 80, 97, 30, 0, 20}});
const std::vector<Shape> kOtherPlans = with_each({{1, 2, 128, 257, 1}, {2, 6, 64, 97, 30}}, {1, 2, 3});
Registration on_tensor_cores(const std::string& name, const Factory& make, const Maker& forward = {},
                             const std::vector<Shape>& more = {}) {
    return {.name = name, .tag = "[attention]", .dimensions = kDimensions,
            .edges = joined(kTensorCoreEdges, more), .small = kLarge, .large = kLarge, .make = make, .forward = forward,
            .dtypes = {DType::bf16}};
}
const Registered flash_forward(on_tensor_cores("flash attention forward", make<FlashForward>, {}, kFlashDocuments));
const Registered flash_backward(on_tensor_cores("flash attention backward", make<FlashBackward>, make<FlashForward>,
                                                kFlashDocuments));
const Registered cudnn_forward(on_tensor_cores("cuDNN attention forward", make<CudnnForward>, {}, kOtherPlans));
const Registered cudnn_backward(on_tensor_cores("cuDNN attention backward", make<CudnnBackward>, make<CudnnForward>,
                                                kOtherPlans));

}  // namespace
}  // namespace operations::attention_operation
