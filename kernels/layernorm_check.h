// layernorm_check.h - input checks of the launchers of layernorm.h
#pragma once
#include <string>
#include <type_traits>

#include "kernels/base/error.h"
#include "kernels/layernorm.h"

namespace kernels {

// Checks the size of each span of an operation.
class LayerNormCheck {
public:
    LayerNormCheck(int rows, int channels, std::size_t element_bytes)
        : rows_(rows),
          channels_(channels) {
        require(rows > 0, "rows of a LayerNorm", rows, "at least 1");
        require(channels > 0 && channels % (16 / element_bytes) == 0, "channels of a LayerNorm", channels,
                "elements of a multiple of 16 bytes");
    }
    template <class Span> void whole(const char* name, const Span& span) const {
        check(name, span, rows_ * channels_, "rows * channels");
    }
    template <class Span> void one_per_row(const char* name, const Span& span) const {
        check(name, span, rows_, "rows");
    }
    template <class Span> void one_per_channel(const char* name, const Span& span) const {
        check(name, span, channels_, "channels");
    }
    // The tensors of both passes.
    template <class Op> void rows_and_weight(const Op& op) const {
        whole("residual", op.residual);
        one_per_row("mean", op.mean);
        one_per_row("rstd", op.rstd);
        one_per_channel("weight", op.weight);
    }
    template <class Span>
    void check(const char* name, const Span& span, std::size_t least, const char* formula) const {
        require_size("LayerNorm's " + std::string(name), span, least, formula);
    }

private:
    std::size_t rows_, channels_;
};

template <class T, class Op>
void check_layernorm_forward(const Op& op) {
    const LayerNormCheck check(op.rows, op.channels, sizeof(T));
    check.rows_and_weight(op);
    check.whole("normed", op.normed);
    check.one_per_channel("bias", op.bias);
    if constexpr (std::is_same_v<Op, ResidualLayerNormForward<T>>) {
        check.whole("left", op.left);
        check.whole("right", op.right);
    }
}

inline void check_scratch(const LayerNormCheck& check, std::span<const float> scratch, int channels) {
    check.check("scratch", scratch, layernorm_backward_scratch(channels), "layernorm_backward_scratch(channels)");
}

template <class T>
void check_layernorm_backward(const LayerNormBackward<T>& op) {
    const LayerNormCheck check(op.rows, op.channels, sizeof(T));
    check.rows_and_weight(op);
    check.whole("dresidual", op.dresidual);
    check.whole("dnormed", op.dnormed);
    check.one_per_channel("dweight", op.dweight);
    check.one_per_channel("dbias", op.dbias);
    check_scratch(check, op.scratch, op.channels);
}

template <class T>
void check_layernorm_dresidual_sum(const LayerNormDresidualSum& op) {
    const LayerNormCheck check(op.rows, op.channels, sizeof(T));
    check.one_per_channel("sum of dresidual", op.sum);
    check_scratch(check, op.scratch, op.channels);
}

}  // namespace kernels
