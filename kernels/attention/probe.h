// probe.h - tensors of a shape with values as large as in training, to time attention
#pragma once
#include <algorithm>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/device/memory.h"

namespace kernels {

class AttentionProbe {
public:
    // Throws Error if memory is insufficient.
    AttentionProbe(const AttentionProblem& problem, StreamRef stream)
        : shape_(problem.shape), qkv_(3 * elements()), out_(elements()), dout_(problem.backward ? elements() : 0),
          dqkv_(problem.backward ? 3 * elements() : 0), logsumexp_(rows()), delta_(problem.backward ? rows() : 0) {
        fill(qkv_.span(), stream);
        fill(dout_.span(), stream);
    }
    AttentionForward<bf16> forward() const {
        return {out_.span(), logsumexp_.span(), qkv_.span(), shape_.batch, shape_.seq_len, shape_.heads,
                shape_.head_size};
    }
    AttentionBackward<bf16> backward() const {  // reads the results of forward()
        return {dqkv_.span(), delta_.span(), dout_.span(), qkv_.span(), out_.span(), logsumexp_.span(), shape_.batch,
                shape_.seq_len, shape_.heads, shape_.head_size};
    }

private:
    std::size_t rows() const { return std::size_t(shape_.batch) * shape_.heads * shape_.seq_len; }
    std::size_t elements() const { return rows() * shape_.head_size; }
    // Uniform in (-1.7, 1.7), variance 1, with a period of 2^20 elements, more than a multiprocessor's caches hold.
    static void fill(std::span<bf16> to, StreamRef stream) {
        std::vector<bf16> numbers(std::min(to.size(), std::size_t(1) << 20));
        std::uint32_t state = 1;
        for (bf16& x : numbers) {
            state = state * 1664525u + 1013904223u;
            x = bf16_from_float(float(state >> 8) * (3.4f / (1 << 24)) - 1.7f);
        }
        for (; !to.empty(); to = to.subspan(std::min(to.size(), numbers.size())))
            device::copy_to_device(to.data(), numbers.data(), std::min(to.size(), numbers.size()) * sizeof(bf16),
                                   stream);
        device::sync(stream);
    }

    AttentionShape shape_;
    device::Array<bf16> qkv_, out_, dout_, dqkv_;
    device::Array<float> logsumexp_, delta_;
};

}  // namespace kernels
