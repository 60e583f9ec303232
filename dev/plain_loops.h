// plain_loops.h - each operation as one would first write it for a CPU: what bench_kernels compares the kernels with
//
// Rows or elements are shared out over the threads; the arithmetic is libm's; nothing is blocked or vectorised by hand.
#pragma once
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/adamw.h"
#include "kernels/classifier.h"
#include "kernels/gelu.h"
#include "kernels/grad_norm.h"
#include "kernels/layernorm.h"

namespace plain {

using kernels::bf16;

inline float widen(float x) { return x; }
inline float widen(bf16 x) { return kernels::bf16_to_float(x); }
template <class T> T narrow(float x) {
    if constexpr (sizeof(T) == sizeof(bf16)) return kernels::bf16_from_float(x);
    else return x;
}

template <class T>
void embedding_forward(std::span<T> out, std::span<const int> tokens, std::span<const T> token_table, std::span<const T> position_table, int seq_len,
                       int channels) {
    #pragma omp parallel for
    for (std::size_t row = 0; row < tokens.size(); ++row)
        for (int c = 0; c < channels; ++c)
            out[row * channels + c] =
                narrow<T>(widen(token_table[std::size_t(tokens[row]) * channels + c]) + widen(position_table[row % seq_len * channels + c]));
}

// Serial: rows with the same token add to the same row of the table.
template <class T>
void embedding_backward(std::span<float> dtoken_table, std::span<float> dposition_table, std::span<const int> tokens, std::span<const T> dout,
                        int seq_len, int channels) {
    for (std::size_t row = 0; row < tokens.size(); ++row)
        for (int c = 0; c < channels; ++c) {
            dtoken_table[std::size_t(tokens[row]) * channels + c] += widen(dout[row * channels + c]);
            dposition_table[row % seq_len * channels + c] += widen(dout[row * channels + c]);
        }
}

template <class T>
void layernorm_row(const T* x, T* normed, float& mean, float& rstd, const T* weight, const T* bias, int channels) {
    float sum = 0, squares = 0;
    for (int c = 0; c < channels; ++c) sum += widen(x[c]);
    mean = sum / channels;
    for (int c = 0; c < channels; ++c) squares += (widen(x[c]) - mean) * (widen(x[c]) - mean);
    rstd = 1 / std::sqrt(squares / channels + 1e-5f);
    for (int c = 0; c < channels; ++c) normed[c] = narrow<T>((widen(x[c]) - mean) * rstd * widen(weight[c]) + widen(bias[c]));
}
template <class T>
void layernorm_forward(const kernels::LayerNormForward<T>& op) {
    #pragma omp parallel for
    for (int row = 0; row < op.rows; ++row) {
        const std::size_t first = std::size_t(row) * op.channels;
        layernorm_row(&op.residual[first], &op.normed[first], op.mean[row], op.rstd[row], op.weight.data(), op.bias.data(), op.channels);
    }
}
template <class T>
void residual_layernorm_forward(const kernels::ResidualLayerNormForward<T>& op) {
    #pragma omp parallel for
    for (int row = 0; row < op.rows; ++row) {
        const std::size_t first = std::size_t(row) * op.channels;
        for (int c = 0; c < op.channels; ++c) op.residual[first + c] = narrow<T>(widen(op.left[first + c]) + widen(op.right[first + c]));
        layernorm_row(&op.residual[first], &op.normed[first], op.mean[row], op.rstd[row], op.weight.data(), op.bias.data(), op.channels);
    }
}
template <class T>
void layernorm_backward(const kernels::LayerNormBackward<T>& op) {
    #pragma omp parallel
    {
        std::vector<float> dweight(op.channels), dbias(op.channels);
        #pragma omp for
        for (int row = 0; row < op.rows; ++row) {
            const T *x = &op.residual[std::size_t(row) * op.channels], *dnormed = &op.dnormed[std::size_t(row) * op.channels];
            T* dx = &op.dresidual[std::size_t(row) * op.channels];
            float average = 0, average_normed = 0;
            for (int c = 0; c < op.channels; ++c) {
                const float g = widen(op.weight[c]) * widen(dnormed[c]);
                average += g / op.channels;
                average_normed += g * (widen(x[c]) - op.mean[row]) * op.rstd[row] / op.channels;
            }
            for (int c = 0; c < op.channels; ++c) {
                const float n = (widen(x[c]) - op.mean[row]) * op.rstd[row];
                dweight[c] += widen(dnormed[c]) * n;
                dbias[c] += widen(dnormed[c]);
                dx[c] = narrow<T>(widen(dx[c]) + (widen(op.weight[c]) * widen(dnormed[c]) - average - n * average_normed) * op.rstd[row]);
            }
        }
        #pragma omp critical
        for (int c = 0; c < op.channels; ++c) {
            op.dweight[c] += dweight[c];
            op.dbias[c] += dbias[c];
        }
    }
}

template <class T>
void gelu_forward(const kernels::GeluForward<T>& op) {
    #pragma omp parallel for
    for (std::size_t i = 0; i < op.in.size(); ++i) {
        const float x = widen(op.in[i]);
        op.out[i] = narrow<T>(0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))));
    }
}
template <class T>
void gelu_backward(const kernels::GeluBackward<T>& op) {
    #pragma omp parallel for
    for (std::size_t i = 0; i < op.in.size(); ++i) {
        const float x = widen(op.in[i]), t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
        const float slope = 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
        op.din[i] = narrow<T>(widen(op.dout[i]) * slope);
    }
}

template <class T>
void bias_gradient(std::span<float> dbias, std::span<const T> dout, int rows, int channels) {
    for (int c = 0; c < channels; ++c) dbias[c] = 0;
    for (int row = 0; row < rows; ++row)
        for (int c = 0; c < channels; ++c) dbias[c] += widen(dout[std::size_t(row) * channels + c]);
}

template <class T>
void classifier(const kernels::Classifier<T>& op) {
    #pragma omp parallel for
    for (int row = 0; row < op.rows; ++row) {
        T* x = &op.logits[std::size_t(row) * op.padded_vocabulary];
        float maximum = -INFINITY, sum = 0;
        for (int c = 0; c < op.vocabulary; ++c) maximum = std::max(maximum, widen(x[c]));
        for (int c = 0; c < op.vocabulary; ++c) sum += std::exp(widen(x[c]) - maximum);
        op.losses[row] = std::log(sum) + maximum - widen(x[op.targets[row]]);
        if (!op.write_dlogits) continue;
        for (int c = 0; c < op.vocabulary; ++c)
            x[c] = narrow<T>((std::exp(widen(x[c]) - maximum) / sum - (c == op.targets[row] ? 1.0f : 0.0f)) * op.scale);
        for (int c = op.vocabulary; c < op.padded_vocabulary; ++c) x[c] = T{};
    }
}

inline double squared_norm(std::span<const float> values) {
    double sum = 0;
    #pragma omp parallel for reduction(+ : sum)
    for (std::size_t i = 0; i < values.size(); ++i) sum += double(values[i]) * values[i];
    return sum;
}

template <class T>
void adamw(const kernels::AdamW<T>& op) {
    const kernels::StepScalars s = op.scalars[0];
    #pragma omp parallel for
    for (std::size_t i = 0; i < op.master.size(); ++i) {
        const float g = op.grad[i] * s.grad_scale;
        op.m[i] = op.beta1 * op.m[i] + (1 - op.beta1) * g;
        op.v[i] = op.beta2 * op.v[i] + (1 - op.beta2) * g * g;
        const float direction = op.m[i] * s.first_correction / (std::sqrt(op.v[i] * s.second_correction) + op.eps);
        op.master[i] -= s.learning_rate * (direction + op.weight_decay * op.master[i]);
        op.parameter[i] = narrow<T>(op.master[i]);
    }
}

// One query at a time, two passes over its keys.
template <class T>
void attention_forward(std::span<T> out, std::span<const T> qkv, int batch, int seq_len, int heads, int head_size) {
    const std::size_t channels = std::size_t(heads) * head_size;
    #pragma omp parallel for collapse(3)
    for (int b = 0; b < batch; ++b)
        for (int h = 0; h < heads; ++h)
            for (int i = 0; i < seq_len; ++i) {
                const T* rows = &qkv[std::size_t(b) * seq_len * 3 * channels + std::size_t(h) * head_size];
                std::vector<float> score(i + 1), result(head_size);
                float maximum = -INFINITY, sum = 0;
                for (int j = 0; j <= i; ++j) {
                    for (int c = 0; c < head_size; ++c) score[j] += widen(rows[i * 3 * channels + c]) * widen(rows[j * 3 * channels + channels + c]);
                    maximum = std::max(maximum, score[j] /= std::sqrt(float(head_size)));
                }
                for (int j = 0; j <= i; ++j) sum += score[j] = std::exp(score[j] - maximum);
                for (int j = 0; j <= i; ++j)
                    for (int c = 0; c < head_size; ++c) result[c] += score[j] / sum * widen(rows[j * 3 * channels + 2 * channels + c]);
                T* out_row = &out[(std::size_t(b) * seq_len + i) * channels + std::size_t(h) * head_size];
                for (int c = 0; c < head_size; ++c) out_row[c] = narrow<T>(result[c]);
            }
}

}  // namespace plain
