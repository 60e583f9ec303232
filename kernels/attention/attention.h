// attention.h - causal self-attention on packed queries, keys and values, and its gradient
//
//   s[i, j] = (q_i . k_j) / sqrt(head_size) for start_i <= j <= i,   p = softmax_j(s),   out_i = sum_j p[i, j] v_j
//   logsumexp_i = log sum_j exp(s[i, j])
//   backward: p from logsumexp, delta_i = dout_i . out_i, dv_j = sum_i p[i, j] dout_i, ds = p (dout_i . v_j - delta_i),
//   dq = ds k, dk = ds^T q
//
// Shapes    qkv, dqkv: (batch, seq_len, 3, heads, head_size) T; out, dout: (batch, seq_len, heads, head_size) T;
//           logsumexp: (batch, heads, seq_len) float; starts: (batch, seq_len) int, 0 <= starts[b, i] <= i, ascending
//           in a row: of documents (kernels/documents.h), or empty if every query attends from key 0 on.
// Numerics  online softmax in float; no seq_len x seq_len matrix in memory. Deterministic: the backward pass adds in a
//           fixed order, without atomics. cuDNN also has a faster, non-deterministic backward pass, which is optional.
// Work      4 * batch * heads * seq_len^2 / 2 * head_size flops forward, 2.5 times that backward. With documents all
//           tiles in which no query attends to a key are skipped.
// Source    Dao 2023, arXiv 2307.08691.
#pragma once
#include <compare>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/device/types.h"

namespace kernels {

struct AttentionShape {
    int batch, seq_len, heads, head_size;
    bool documents = false;  // rows may have several, which only then have starts; excludes cuDNN
    std::size_t sequences() const { return std::size_t(batch) * heads; }
    std::size_t rows() const { return sequences() * seq_len; }
    std::size_t elements() const { return rows() * head_size; }
    auto operator<=>(const AttentionShape&) const = default;
};

template <class T>
struct AttentionForward {
    std::span<T> out;
    std::span<float> logsumexp;  // saved for the backward pass
    std::span<const T> qkv;
    AttentionShape shape;
    std::span<const int> starts{};
};

template <class T>
struct AttentionBackward {
    std::span<T> dqkv;       // overwritten
    std::span<float> delta;  // (batch, heads, seq_len), scratch
    std::span<const T> dout, qkv, out;
    std::span<const float> logsumexp;
    AttentionShape shape;
    std::span<const int> starts{};
};

// The plain implementation: plain_gpu.cu | attention_cpu.cpp. Both enqueue on `stream`; outputs are ready when the
// stream has passed this point. Both throw Error unless head_size is a multiple of 16 / sizeof(T) and at most 256, and
// every span is long enough.
template <class T>
void attention_forward(const AttentionForward<T>& op, StreamRef stream);
template <class T>
void attention_backward(const AttentionBackward<T>& op, StreamRef stream);

// automatic: the fastest of the other methods that support the shape and need a workspace of at most 4 GiB, or the
// first of them if no times are known.
// cudnn and flash support bf16 only. All methods save the same logsumexp.
enum class AttentionMethod { automatic, cudnn, flash, plain };
inline constexpr std::pair<std::string_view, AttentionMethod> kAttentionMethods[] = {
    {"auto", AttentionMethod::automatic},
    {"cudnn", AttentionMethod::cudnn},
    {"flash", AttentionMethod::flash},
    {"plain", AttentionMethod::plain}};

class TunedAlgorithms;

struct AttentionSettings {
    AttentionMethod method = AttentionMethod::automatic;
    bool deterministic = true;   // false: also allow cuDNN's faster backward pass, whose last bits differ between runs
    TunedAlgorithms* tuned = nullptr;  // must outlive this object; nullptr: nothing is timed
};

// How to compute attention: a candidate, then the selected one.
struct AttentionPlan {
    AttentionMethod method;           // never automatic
    bool backward;                    // for the backward pass, too
    bool deterministic = true;        // bit-identical in every run
    int forward_plan = 0, backward_plan = 0;  // of cuDNN: their numbers in the order of its heuristics
    std::size_t workspace_bytes = 0;  // device memory for the library's workspace
    std::string why_not_cudnn{};      // why automatic cannot use cuDNN; empty: it can, or was not tried
    std::string text{};               // for the log: the method, and how it was selected
    std::string name() const;         // the key under which a candidate's time is stored
};

// Owns cuDNN's handle, its workspace and the cached plans, one per shape. Not thread-safe.
class Attention {
public:
    explicit Attention(const AttentionSettings& settings = {});
    ~Attention();

    // Autotuning: times all candidates on its own tensors, if settings.tuned allows it and has no result yet. Takes the
    // fastest; of cuDNN's deterministic ones only if two runs are bit-identical. Synchronizes. Does nothing if there
    // is only one candidate, no memory for the tensors, or plan() would throw.
    void choose(DType dtype, const AttentionShape& shape, bool backward, StreamRef stream);
    // Selects the method for one shape, using the autotuned result if there is one; allocates nothing. `backward`: for
    // the backward pass, too. Throws Error that names --attention if the requested method does not support it.
    const AttentionPlan& plan(DType dtype, const AttentionShape& shape, bool backward) const;
    // Plans again, once other results are known: settings.tuned has changed.
    void replan();
    // The key under which autotuned results are stored, such as "attention with cuDNN 9.19.0".
    std::string library() const;

    // Like attention_forward and attention_backward, with the method planned for the shape; plans it if necessary.
    template <class T> void forward(const AttentionForward<T>& op, StreamRef stream);
    template <class T> void backward(const AttentionBackward<T>& op, StreamRef stream);

    struct State;

private:
    std::unique_ptr<State> state_;
};

}  // namespace kernels
