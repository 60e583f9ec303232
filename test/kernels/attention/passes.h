// passes.h - forward and backward pass of attention on device tensors, with a given implementation
#pragma once
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/implementations.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "test/support/support.h"

namespace test {

using kernels::Attention;
using kernels::AttentionMethod;
using kernels::AttentionShape;

inline std::size_t rows_of(const AttentionShape& s) { return std::size_t(s.batch) * s.heads * s.seq_len; }
inline std::size_t elements_of(const AttentionShape& s) { return rows_of(s) * s.head_size; }

struct Results {
    std::vector<double> out, logsumexp, dqkv;
};

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

// Whether the build has the method. A CPU's only implementation is tested as plain.
inline bool is_built(AttentionMethod method) {
    const kernels::AttentionBuild build = kernels::attention_build();
    return build.choice ? method != AttentionMethod::cudnn || build.cudnn : method == AttentionMethod::plain;
}

inline void skip_without_device() {
    try {
        device::open(0);
    } catch (const Error& error) {
        skip(error.what());
    }
}

inline Attention make_attention(AttentionMethod method) {
    return Attention({.method = kernels::attention_build().choice ? method : AttentionMethod::automatic});
}

}  // namespace test
