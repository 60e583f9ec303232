// attention.h - causal self-attention on packed queries, keys and values, and its gradient
//
//   s[i, j] = (q_i . k_j) / sqrt(head_size) for j <= i,   p = softmax_j(s),   out_i = sum_j p[i, j] v_j
//   logsumexp_i = log sum_j exp(s[i, j])
//   backward: p from logsumexp, delta_i = dout_i . out_i, dv_j = sum_i p[i, j] dout_i, ds = p (dout_i . v_j - delta_i),
//   dq = ds k, dk = ds^T q
//
// Shapes    qkv, dqkv: (batch, seq_len, 3, heads, head_size) T; out, dout: (batch, seq_len, heads, head_size) T;
//           logsumexp: (batch, heads, seq_len) float.
// Numerics  online softmax in float; no seq_len x seq_len matrix in memory. The same bits every time: the backward pass
//           adds in a fixed order, without atomics. cuDNN has a faster one, too, that does not, for those who ask.
// Work      4 * batch * heads * seq_len^2 / 2 * head_size flops forward, 2.5 times that backward.
// Source    Dao 2023, arXiv 2307.08691.
#pragma once
#include <compare>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/device/types.h"

namespace kernels {

template <class T>
struct AttentionForward {
    std::span<T> out;
    std::span<float> logsumexp;  // kept for the backward pass
    std::span<const T> qkv;
    int batch, seq_len, heads, head_size;
};

template <class T>
struct AttentionBackward {
    std::span<T> dqkv;       // overwritten
    std::span<float> delta;  // (batch, heads, seq_len), scratch
    std::span<const T> dout, qkv, out;
    std::span<const float> logsumexp;
    int batch, seq_len, heads, head_size;
};

// The plain implementation: plain_gpu.cu | attention_cpu.cpp. Both enqueue on `stream`; outputs are ready when the
// stream has passed this point. Both throw Error unless head_size is a multiple of 16 / sizeof(T) and at most 256, and
// every span is long enough.
template <class T>
void attention_forward(const AttentionForward<T>& op, StreamRef stream);
template <class T>
void attention_backward(const AttentionBackward<T>& op, StreamRef stream);

// automatic: the fastest of the others that can do what is asked, or the first where no times are known. cudnn and
// flash compute in bf16 only. All keep the same logsumexp.
enum class AttentionMethod { automatic, cudnn, flash, plain };
inline constexpr std::pair<std::string_view, AttentionMethod> kAttentionMethods[] = {
    {"auto", AttentionMethod::automatic},
    {"cudnn", AttentionMethod::cudnn},
    {"flash", AttentionMethod::flash},
    {"plain", AttentionMethod::plain}};

class Choices;

struct AttentionOptions {
    AttentionMethod method = AttentionMethod::automatic;
    bool deterministic = true;   // false: cuDNN's faster backward pass, too, whose last bits differ from run to run
    Choices* choices = nullptr;  // outlives this; nullptr: nothing is timed
};

struct AttentionShape {
    int batch, seq_len, heads, head_size;
    auto operator<=>(const AttentionShape&) const = default;
};

// What decides which method can be used.
struct AttentionProblem {
    DType dtype;
    AttentionShape shape;
    bool backward;  // the backward pass too
};

struct AttentionPlan {
    AttentionMethod method;           // never automatic
    bool deterministic = true;        // the same bits every time
    std::size_t workspace_bytes = 0;  // of device memory, for the library's own use
    std::string passed_over;          // why cuDNN cannot, where automatic would have asked it; empty: it can
    std::string times;                // by which it was chosen; empty: it is the first that can
};

// Owns cuDNN's handle, its workspace and the plans made, one per shape. Not for two threads at once.
class Attention {
public:
    explicit Attention(const AttentionOptions& options = {});
    ~Attention();
    Attention(Attention&&) noexcept;
    Attention& operator=(Attention&&) noexcept;

    // Times all that can do what is asked, on tensors of its own, where options.choices allows it and has no choice
    // yet. Waits. Does nothing where there is one way only, no room for the tensors, or what plan() refuses.
    void choose(const AttentionProblem& problem, StreamRef stream);
    // Decides for one shape, by the choice if there is one, allocating nothing. Throws Error that names --attention
    // where the method asked for by name cannot do it.
    const AttentionPlan& plan(const AttentionProblem& problem) const;
    // For the log: the method, and how it was chosen.
    std::string describe(const AttentionProblem& problem) const;
    // What choices are kept under, such as "attention with cuDNN 9.19.0".
    std::string library() const;

    // As attention_forward and attention_backward, by the method planned for the shape, or planned now.
    template <class T> void forward(const AttentionForward<T>& op, StreamRef stream);
    template <class T> void backward(const AttentionBackward<T>& op, StreamRef stream);

    struct State;

private:
    std::unique_ptr<State> state_;
};

}  // namespace kernels
