// reference_model.cpp - forward pass, backward pass and AdamW of the reference, row by row in double
#include "test/support/reference_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/error.h"
#include "kernels/device/types.h"
#include "test/operations/rounded.h"

namespace test {
namespace {

using llmc::BlockParameters;
using llmc::ParameterTable, llmc::Fp8;
using operations::widen, operations::narrow, operations::bf16, operations::e4m3, operations::e5m2;
using Row = std::vector<double>;  // any matrix, row-major

constexpr double kEpsilon = 1e-5;

double gelu(double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double gelu_slope(double x) {
    const double t = std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
}

// The values of one block that the backward pass needs.
struct BlockValues {
    Row normed1, qkv, probabilities, attention, middle, normed2, fc, activated;
    Row mean1, rstd1, mean2, rstd2;
};

class Pass {
public:
    Pass(const ParameterTable& table, std::span<const double> parameters, const ReferenceBatch& batch,
         Fp8 fp8 = Fp8::off)
        : fp8_(fp8),
          table_(table),
          parameters_(parameters),
          batch_(batch),
          rows_(batch.rows()),
          channels_(table.config().channels),
          heads_(table.config().heads) {
        require(std::int64_t(parameters.size()) == table.elements(), "the reference's parameters", parameters.size(),
                "one per element of the table");
        require(int(batch.tokens.size()) == rows_, "the reference's tokens", batch.tokens.size(), "batch * seq_len");
        require(batch.seq_len <= table.config().max_seq_len, "the reference's sequence length", batch.seq_len,
                "at most the model's");
    }

    void forward() {
        const auto tokens = weight(table_.token_table()), positions = weight(table_.position_table());
        Row x(std::size_t(rows_) * channels_);
        for (int row = 0; row < rows_; ++row)
            for (int c = 0; c < channels_; ++c)
                at(x, row, c) = tokens[entry(batch_.tokens[row], c)] + positions[entry(row % batch_.seq_len, c)];
        for (int layer = 0; layer < table_.config().layers; ++layer) {
            const BlockParameters& p = table_.block(layer);
            BlockValues b;
            residual_.push_back(x);
            b.normed1 = layernorm(x, p.ln1.weight, p.ln1.bias, b.mean1, b.rstd1);
            b.qkv = linear(b.normed1, p.qkv.weight, p.qkv.bias);
            attention(b);
            b.middle = sum(x, linear(b.attention, p.attn_proj.weight, p.attn_proj.bias));
            b.normed2 = layernorm(b.middle, p.ln2.weight, p.ln2.bias, b.mean2, b.rstd2);
            b.fc = linear(b.normed2, p.fc.weight, p.fc.bias);
            b.activated = b.fc;
            for (double& value : b.activated) value = gelu(value);
            x = sum(b.middle, linear(b.activated, p.mlp_proj.weight, p.mlp_proj.bias));
            blocks_.push_back(std::move(b));
        }
        residual_.push_back(x);
        final_ = layernorm(x, table_.final_ln().weight, table_.final_ln().bias, final_mean_, final_rstd_);
        head_ = {tokens.begin(), tokens.end()};
        if (fp8_ != Fp8::off) round_to<bf16>(final_, 1);
        rounded_final_ = final_;
        if (fp8_ != Fp8::off) {
            const double bound = largest_magnitude(weight(table_.final_ln().weight)) * std::sqrt(double(channels_)) +
                                 largest_magnitude(weight(table_.final_ln().bias));
            round_to<e4m3>(rounded_final_, std::exp2(std::floor(std::log2(448 / bound))));
            round_to<e4m3>(head_, std::exp2(std::floor(std::log2(448 / largest_magnitude(tokens)))));
        }
        const Row& x_of_head = fp8_ == Fp8::head ? rounded_final_ : final_;
        const std::span<const double> head = fp8_ == Fp8::head ? head_ : tokens;
        const int vocabulary = table_.config().vocabulary;
        logits.assign(std::size_t(rows_) * vocabulary, 0);
        for (int row = 0; row < rows_; ++row)
            for (int v = 0; v < vocabulary; ++v)
                for (int c = 0; c < channels_; ++c)
                    logits[std::size_t(row) * vocabulary + v] += at(x_of_head, row, c) * head[entry(v, c)];
        if (fp8_ != Fp8::off) round_to<bf16>(logits, 1);
    }

    // Replaces the logits by the gradient of the loss sum with respect to them.
    ReferenceLoss loss() {
        require(int(batch_.targets.size()) == rows_, "the reference's targets", batch_.targets.size(), "one per token");
        const int vocabulary = table_.config().vocabulary;
        ReferenceLoss loss;
        for (int row = 0; row < rows_; ++row) {
            double* const x = &logits[std::size_t(row) * vocabulary];
            if (batch_.targets[row] == kernels::kIgnoreTarget) {
                std::fill_n(x, vocabulary, 0.0);
                continue;
            }
            require(batch_.targets[row] >= 0 && batch_.targets[row] < vocabulary, "a target", batch_.targets[row],
                    "an id of the vocabulary");
            const double largest = *std::max_element(x, x + vocabulary);
            double total = 0;
            for (int v = 0; v < vocabulary; ++v) total += std::exp(x[v] - largest);
            loss.sum += largest + std::log(total) - x[batch_.targets[row]];
            ++loss.valid_targets;
            for (int v = 0; v < vocabulary; ++v) x[v] = std::exp(x[v] - largest) / total - (v == batch_.targets[row]);
        }
        if (fp8_ != Fp8::off) round_to<e5m2>(logits, 0x1p15);
        return loss;
    }

    // The gradient of the sum over rows and vocabulary of logits * (the logits of the last forward pass).
    Row backward() {
        gradient_.assign(parameters_.size(), 0);
        const auto dtokens = gradient(table_.token_table()), dpositions = gradient(table_.position_table());
        const int vocabulary = table_.config().vocabulary;
        Row dfinal(final_.size());
        for (int row = 0; row < rows_; ++row)
            for (int v = 0; v < vocabulary; ++v)
                for (int c = 0; c < channels_; ++c) {
                    const double dlogit = logits[std::size_t(row) * vocabulary + v];
                    at(dfinal, row, c) += dlogit * head_[entry(v, c)];
                    dtokens[entry(v, c)] += dlogit * at(rounded_final_, row, c);
                }
        Row dx = layernorm_backward(dfinal, residual_.back(), table_.final_ln().weight, table_.final_ln().bias,
                                    final_mean_, final_rstd_);
        for (int layer = table_.config().layers - 1; layer >= 0; --layer) {
            const BlockParameters& p = table_.block(layer);
            const BlockValues& b = blocks_[std::size_t(layer)];
            Row dfc = linear_backward(dx, b.activated, p.mlp_proj.weight, p.mlp_proj.bias);
            for (std::size_t i = 0; i < dfc.size(); ++i) dfc[i] *= gelu_slope(b.fc[i]);
            const Row dnormed2 = linear_backward(dfc, b.normed2, p.fc.weight, p.fc.bias);
            dx = sum(dx, layernorm_backward(dnormed2, b.middle, p.ln2.weight, p.ln2.bias, b.mean2, b.rstd2));
            const Row dqkv = attention_backward(linear_backward(dx, b.attention, p.attn_proj.weight, p.attn_proj.bias),
                                                b);
            const Row dnormed1 = linear_backward(dqkv, b.normed1, p.qkv.weight, p.qkv.bias);
            dx = sum(dx, layernorm_backward(dnormed1, residual_[std::size_t(layer)], p.ln1.weight, p.ln1.bias, b.mean1,
                                            b.rstd1));
        }
        for (int row = 0; row < rows_; ++row)
            for (int c = 0; c < channels_; ++c) {
                dtokens[entry(batch_.tokens[row], c)] += at(dx, row, c);
                dpositions[entry(row % batch_.seq_len, c)] += at(dx, row, c);
            }
        return std::move(gradient_);
    }

    Row logits;  // (rows, vocabulary)

private:
    std::span<const double> weight(int tensor) const { return table_.view(parameters_, tensor); }
    std::span<double> gradient(int tensor) { return table_.view(std::span<double>(gradient_), tensor); }
    std::size_t entry(int row, int c) const { return std::size_t(row) * channels_ + c; }
    double& at(Row& x, int row, int c) const { return x[entry(row, c)]; }
    double at(const Row& x, int row, int c) const { return x[entry(row, c)]; }

    template <class T> static void round_to(Row& x, double scale) {
        for (double& value : x) value = widen(narrow<T>(scale * value)) / scale;
    }
    static double largest_magnitude(std::span<const double> x) {
        double most = 0;
        for (const double value : x) most = std::max(most, std::fabs(value));
        return most;
    }

    static Row sum(Row a, const Row& b) {
        for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
        return a;
    }

    Row layernorm(const Row& x, int gain, int bias, Row& mean, Row& rstd) const {
        const auto g = weight(gain), b = weight(bias);
        Row normed(x.size());
        for (int row = 0; row < rows_; ++row) {
            double average = 0, variance = 0;
            for (int c = 0; c < channels_; ++c) average += at(x, row, c) / channels_;
            for (int c = 0; c < channels_; ++c)
                variance += (at(x, row, c) - average) * (at(x, row, c) - average) / channels_;
            mean.push_back(average);
            rstd.push_back(1 / std::sqrt(variance + kEpsilon));
            for (int c = 0; c < channels_; ++c)
                at(normed, row, c) = (at(x, row, c) - average) * rstd.back() * g[c] + b[c];
        }
        return normed;
    }
    Row layernorm_backward(const Row& dnormed, const Row& x, int gain, int bias, const Row& mean, const Row& rstd) {
        const auto g = weight(gain);
        const auto dg = gradient(gain), db = gradient(bias);
        Row dx(x.size());
        for (int row = 0; row < rows_; ++row) {
            double average = 0, projection = 0;  // of dnormed * gain: mean, and mean product with x_hat
            const auto hat = [&](int c) { return (at(x, row, c) - mean[row]) * rstd[row]; };
            for (int c = 0; c < channels_; ++c) {
                average += at(dnormed, row, c) * g[c] / channels_;
                projection += at(dnormed, row, c) * g[c] * hat(c) / channels_;
                dg[c] += at(dnormed, row, c) * hat(c);
                db[c] += at(dnormed, row, c);
            }
            for (int c = 0; c < channels_; ++c)
                at(dx, row, c) = (at(dnormed, row, c) * g[c] - average - hat(c) * projection) * rstd[row];
        }
        return dx;
    }

    Row linear(const Row& in, int matrix, int bias) const {
        const auto w = weight(matrix), b = weight(bias);
        const std::size_t outputs = b.size(), inputs = w.size() / outputs;
        Row out(rows_ * outputs);
        for (int row = 0; row < rows_; ++row)
            for (std::size_t o = 0; o < outputs; ++o) {
                double value = b[o];
                for (std::size_t i = 0; i < inputs; ++i) value += in[row * inputs + i] * w[o * inputs + i];
                out[row * outputs + o] = value;
            }
        return out;
    }
    Row linear_backward(const Row& dout, const Row& in, int matrix, int bias) {
        const auto w = weight(matrix);
        const auto dw = gradient(matrix), db = gradient(bias);
        const std::size_t outputs = db.size(), inputs = w.size() / outputs;
        Row din(in.size());
        for (int row = 0; row < rows_; ++row)
            for (std::size_t o = 0; o < outputs; ++o) {
                const double d = dout[row * outputs + o];
                db[o] += d;
                for (std::size_t i = 0; i < inputs; ++i) {
                    din[row * inputs + i] += d * w[o * inputs + i];
                    dw[o * inputs + i] += d * in[row * inputs + i];
                }
            }
        return din;
    }

    // Index of the first element of query (0), key (1) or value (2) of a head in qkv; index of a query's probabilities.
    std::size_t part(int row, int which, int head) const { return entry(row * 3 + which, head * (channels_ / heads_)); }
    std::size_t query(int row, int head) const { return (std::size_t(row) * heads_ + head) * batch_.seq_len; }

    // Calls work(row of the query, head, first row of the sequence) for every query and head.
    template <class Work> void for_each_query(Work&& work) const {
        for (int row = 0; row < rows_; ++row)
            for (int head = 0; head < heads_; ++head) work(row, head, row / batch_.seq_len * batch_.seq_len);
    }

    void attention(BlockValues& b) const {
        const int size = channels_ / heads_;
        b.attention.assign(std::size_t(rows_) * channels_, 0);
        b.probabilities.assign(std::size_t(rows_) * heads_ * batch_.seq_len, 0);
        for_each_query([&](int row, int head, int first) {
            double* const p = &b.probabilities[query(row, head)];
            double largest = -INFINITY, total = 0;
            for (int key = first; key <= row; ++key) {
                double score = 0;
                for (int c = 0; c < size; ++c) score += b.qkv[part(row, 0, head) + c] * b.qkv[part(key, 1, head) + c];
                p[key - first] = score / std::sqrt(double(size));
                largest = std::max(largest, p[key - first]);
            }
            for (int key = first; key <= row; ++key) total += p[key - first] = std::exp(p[key - first] - largest);
            for (int key = first; key <= row; ++key) {
                p[key - first] /= total;
                for (int c = 0; c < size; ++c)
                    at(b.attention, row, head * size + c) += p[key - first] * b.qkv[part(key, 2, head) + c];
            }
        });
    }
    Row attention_backward(const Row& dout, const BlockValues& b) const {
        const int size = channels_ / heads_;
        Row dqkv(b.qkv.size());
        for_each_query([&](int row, int head, int first) {
            const double* const p = &b.probabilities[query(row, head)];
            Row dp(std::size_t(row - first) + 1);
            double average = 0;
            for (int key = first; key <= row; ++key) {
                for (int c = 0; c < size; ++c) {
                    dp[key - first] += at(dout, row, head * size + c) * b.qkv[part(key, 2, head) + c];
                    dqkv[part(key, 2, head) + c] += p[key - first] * at(dout, row, head * size + c);
                }
                average += p[key - first] * dp[key - first];
            }
            for (int key = first; key <= row; ++key) {
                const double dscore = p[key - first] * (dp[key - first] - average) / std::sqrt(double(size));
                for (int c = 0; c < size; ++c) {
                    dqkv[part(row, 0, head) + c] += dscore * b.qkv[part(key, 1, head) + c];
                    dqkv[part(key, 1, head) + c] += dscore * b.qkv[part(row, 0, head) + c];
                }
            }
        });
        return dqkv;
    }

    Fp8 fp8_;
    const ParameterTable& table_;
    std::span<const double> parameters_;
    const ReferenceBatch& batch_;
    int rows_, channels_, heads_;
    std::vector<Row> residual_;  // the input of each block, and the output of the last one
    std::vector<BlockValues> blocks_;
    Row final_, final_mean_, final_rstd_, gradient_;
    Row rounded_final_, head_;   // the factors of the head's gradients
};

}  // namespace

std::vector<double> reference_logits(const ParameterTable& table, std::span<const double> parameters,
                                     const ReferenceBatch& batch) {
    Pass pass(table, parameters, batch);
    pass.forward();
    return std::move(pass.logits);
}

ReferenceLoss reference_loss(const ParameterTable& table, std::span<const double> parameters,
                             const ReferenceBatch& batch) {
    Pass pass(table, parameters, batch);
    pass.forward();
    return pass.loss();
}

ReferenceGradient reference_gradient(const ParameterTable& table, std::span<const double> parameters,
                                     const ReferenceBatch& batch, Fp8 fp8) {
    Pass pass(table, parameters, batch, fp8);
    pass.forward();
    ReferenceGradient result{pass.loss(), {}};
    result.gradient = pass.backward();
    if (result.loss.valid_targets > 0)
        for (double& x : result.gradient) x /= double(result.loss.valid_targets);
    return result;
}

double ReferenceAdamW::update(const ParameterTable& table, std::span<double> parameters,
                              std::span<const double> gradient, double learning_rate) {
    m.resize(parameters.size());
    v.resize(parameters.size());
    double square = 0;
    for (const double g : gradient) square += g * g;
    const double norm = std::sqrt(square), clip = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1;
    ++step;
    for (const llmc::ParameterSpec& spec : table.tensors())
        for (std::size_t i = std::size_t(spec.offset); i < std::size_t(spec.offset + spec.size()); ++i) {
            const double g = gradient[i] * clip;
            m[i] = beta1 * m[i] + (1 - beta1) * g;
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            const double direction = m[i] / (1 - std::pow(beta1, step)) /
                                     (std::sqrt(v[i] / (1 - std::pow(beta2, step))) + eps);
            parameters[i] -= learning_rate * (direction + (spec.decays ? weight_decay : 0) * parameters[i]);
        }
    return norm;
}

namespace {

// Row-major (rows, columns) of a product of two factors.
std::vector<double> product(const std::vector<double>& left, const std::vector<double>& right, int rows, int inner,
                            int columns) {
    std::vector<double> out(std::size_t(rows) * columns);
    for (int i = 0; i < rows; ++i)
        for (int k = 0; k < inner; ++k)
            for (int j = 0; j < columns; ++j)
                out[std::size_t(i) * columns + j] +=
                    left[std::size_t(i) * inner + k] * right[std::size_t(k) * columns + j];
    return out;
}

std::vector<double> transposed(const std::vector<double>& x, int rows, int columns) {
    std::vector<double> out(x.size());
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < columns; ++j) out[std::size_t(j) * rows + i] = x[std::size_t(i) * columns + j];
    return out;
}

std::vector<double> orthogonalized(std::vector<double> x, int rows, int columns) {
    if (rows > columns) return transposed(orthogonalized(transposed(x, rows, columns), columns, rows), columns, rows);
    double square = 0;
    for (const double u : x) square += u * u;
    for (double& u : x) u /= std::max(std::sqrt(square), 1e-7);
    for (int step = 0; step < 5; ++step) {
        const auto gram = product(x, transposed(x, rows, columns), rows, columns, rows),
                   gram_squared = product(gram, gram, rows, rows, rows);
        std::vector<double> polynomial(gram.size());
        for (std::size_t i = 0; i < gram.size(); ++i) polynomial[i] = -4.7750 * gram[i] + 2.0315 * gram_squared[i];
        const auto more = product(polynomial, x, rows, rows, columns);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + more[i];
    }
    return x;
}

}  // namespace

void ReferenceMuon::update(const ParameterTable& table, std::span<double> parameters, std::span<const double> gradient,
                           double learning_rate) {
    m.resize(parameters.size());
    const std::vector<double> before(parameters.begin(), parameters.end());
    const double norm = adamw.update(table, parameters, gradient, learning_rate),
                 clip = adamw.max_norm > 0 ? std::min(1.0, adamw.max_norm / (norm + 1e-6)) : 1,
                 rate = learning_rate * learning_rate_factor;
    for (const llmc::ParameterSpec& spec : table.tensors()) {
        if (spec.is_vector() || spec.name.starts_with("w")) continue;  // wte, wpe
        const int parts = spec.name.ends_with("c_attn.weight") ? 3 : 1, rows = int(spec.rows) / parts,
                  columns = int(spec.columns);
        for (int part = 0; part < parts; ++part) {
            const std::size_t first = std::size_t(spec.offset + std::int64_t(part) * rows * columns);
            std::vector<double> u(std::size_t(rows) * columns);
            for (std::size_t i = 0; i < u.size(); ++i) {
                const double g = gradient[first + i] * clip;
                m[first + i] = momentum * m[first + i] + (1 - momentum) * g;
                u[i] = (1 - momentum) * g + momentum * m[first + i];
            }
            const auto o = orthogonalized(u, rows, columns);
            for (std::size_t i = 0; i < u.size(); ++i) {
                const double w = before[first + i], decay = cautious_decay && o[i] * w < 0 ? 0 : adamw.weight_decay;
                parameters[first + i] =
                    (1 - rate * decay) * w - rate * 0.2 * std::sqrt(std::max(rows, columns)) * o[i];
            }
        }
    }
}

}  // namespace test
