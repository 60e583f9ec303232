// model.cpp - GPT-2's forward and backward pass, in fp32 and bf16
//
// Shapes in comments: B sequences of T positions, C channels, H hidden channels of the MLP, V the padded vocabulary; r
// rows of one chunk of the head. x is the residual stream, (B, T, C).
#include "llmc/model/model.h"

#include <algorithm>
#include <string>

#include "kernels/classifier.h"
#include "kernels/device/range.h"
#include "kernels/gelu.h"
#include "llmc/model/forward_pass.h"
#include "llmc/model/gradient_exchange.h"

namespace llmc {
namespace {

using kernels::bf16;
using kernels::DType;

// Elements: of the token embedding or of the MLP's.
std::size_t largest_weight(const ModelConfig& config) {
    return std::size_t(std::max(config.padded_vocabulary(), config.hidden_channels())) * std::size_t(config.channels);
}

template <class Element>
std::size_t activation_bytes(const ModelSetup& setup, const device::Info& device) {
    Arena counter(nullptr);
    lay_out_activations<Element>(counter, setup, device.logits_bytes);
    return counter.bytes();
}

template <class Element>
class Gpt2 final : public Model {
public:
    Gpt2(const ModelSetup& setup, const ParameterTable& table, Context& context)
        : Model(table, setup.dtype, setup.sharding, context), setup_(setup), pass_(*this, context, FewRows::library),
          memory_(activation_bytes<Element>(setup, context.device)) {
        Arena arena(memory_.data());
        act_ = lay_out_activations<Element>(arena, setup, context.device.logits_bytes);
        for (int layer = 0; layer < layers(); ++layer) layer_name_.push_back("h." + std::to_string(layer));
    }

    void forward_backward(const MicroBatch& batch, float token_weight, GradientExchange& gradients) override {
        forward(batch);
        if (gradients.sums().micro().is_first()) round_head();
        gradients.open(buckets().embeddings());
        head_backward(batch, token_weight, gradients);
        kernels::accumulate_losses(gradients.loss_sum(), losses(), stream());
        backward(batch, gradients);
    }

    void evaluate(const MicroBatch& batch, std::span<double> loss_sum) override {
        forward_losses(batch);
        kernels::accumulate_losses(loss_sum, losses(), stream());
    }

    std::vector<float> token_losses(const MicroBatch& batch) override {
        forward_losses(batch);
        std::vector<float> host(shape_.rows());
        device::copy_to_host(host.data(), losses().data(), losses().size_bytes(), stream());
        context_.stream.sync();
        return host;
    }

    void choose_products(const MicroBatch& batch, bool accumulating) override {
        const bool training = setup_.training;
        const device::Array<float> weight(training ? largest_weight(setup_.config) : 0),
            bias(std::size_t(setup_.config.hidden_channels()));
        if (training) forward(batch), round_head();
        else forward_losses(batch);
        for (const bool added : {false, true}) {
            if (!training || (added && !accumulating)) break;
            const ScratchGradients gradients{table(), weight.span(), bias.span(), added};
            head_backward(batch, 1.0f / float(shape_.rows()), gradients);
            backward_block(layers() - 1, gradients);  // all blocks have the same shapes
        }
        context_.stream.sync();  // before the temporaries are freed
    }

private:
    using Tensor = std::span<Element>;
    using Input = std::span<const Element>;

    enum class Dlogits { none, in_place };
    enum class Dresidual { overwrite, add };
    // In place of a GradientExchange: the gradients of any layer, in the same memory.
    struct ScratchGradients {
        const ParameterTable& table;
        std::span<float> weight, bias;
        bool added;
        std::span<float> gradient(int tensor) const {
            const ParameterSpec& spec = table.tensors()[std::size_t(tensor)];
            return (spec.name.ends_with(".bias") ? bias : weight).first(std::size_t(spec.size()));
        }
        bool accumulate() const { return added; }
        void complete(int) const {}
    };
    // Rows [first, first + rows) of the micro-batch whose logits fit in the logits buffer.
    struct Chunk {
        std::size_t first;
        int rows;
    };

    // From tokens to losses.
    void forward_losses(const MicroBatch& batch) {
        forward(batch);
        for (std::size_t first = 0; first < shape_.rows(); first += act_.classifier_rows)
            classify(batch, chunk_at(first), Dlogits::none);
    }

    // From tokens to ln_f(x).
    void forward(const MicroBatch& batch) {
        const device::Range range("forward");
        require(batch.shape.rows() <= setup_.shape.rows(), "the rows of a micro-batch", batch.shape.rows(),
                "at most " + std::to_string(setup_.shape.rows()));
        shape_ = batch.shape;
        starts_ = batch.starts;
        wait_for_parameters(buckets().embeddings());
        kernels::embedding_forward<Element>({.out = act_.residual[0],  // (B, T, C)
                                             .tokens = batch.tokens,   // (B, T)
                                             .token_table = pass_.weight(table().token_table()),
                                             .position_table = pass_.weight(table().position_table()),
                                             .batch = shape_.batch, .seq_len = shape_.seq_len,
                                             .channels = channels(), .starts = batch.starts}, stream());
        wait_for_parameters(buckets().of_layer(0));
        pass_.layernorm(act_.block[0].ln1, act_.residual[0], table().block(0).ln1, rows());
        for (int layer = 0; layer < layers(); ++layer) {
            const device::Range layer_range(layer_name_[std::size_t(layer)].c_str());
            block_to_gelu(layer);
            if (layer + 1 < layers()) wait_for_parameters(buckets().of_layer(layer + 1));  // has the next LayerNorm
            pass_.block_from_gelu(act_.residual[layer + 1], act_.layernorm_after(layer), act_.block[layer], act_.branch,
                                  table().block(layer), table().layernorm_after(layer), rows());
        }
    }

    // From the gradient of ln_f(x), in dnormed, to that of the tables.
    void backward(const MicroBatch& batch, GradientExchange& gradients) {
        const device::Range range("backward");
        for (int layer = layers() - 1; layer >= 0; --layer) {
            const device::Range layer_range(layer_name_[std::size_t(layer)].c_str());
            gradients.open(buckets().of_layer(layer));  // that of the last block also has ln_f
            backward_block(layer, gradients);
        }
        layernorm_backward(Dresidual::add, act_.block[0].ln1, act_.residual[0], table().block(0).ln1, gradients);
        gradients.complete(buckets().of_layer(0));
        kernels::embedding_backward<Element>({.dtoken_table = gradients.gradient(table().token_table()),
                                              .dposition_table = gradients.gradient(table().position_table()),
                                              .scratch = act_.scratch, .dout = act_.dresidual,  // (B, T, C)
                                              .sorted = batch.sorted, .batch = shape_.batch,
                                              .seq_len = shape_.seq_len, .channels = channels(),
                                              .max_seq_len = setup_.config.max_seq_len,
                                              .accumulate_positions = gradients.accumulate(),
                                              .by_position = batch.by_position}, stream());
        gradients.complete(buckets().embeddings());
    }

    void block_to_gelu(int layer) {
        const BlockActivations<Element>& a = act_.block[layer];
        pass_.block_to_gelu(a, act_.residual[layer], act_.branch, table().block(layer), rows(),
                            [&] { attention(a.attention, a.logsumexp, a.qkv); });
    }

    // The gradients of a block and of the LayerNorm of its output (forward_pass.h), from the end: from that LayerNorm's
    // gradient, in dnormed, and that of its input through later blocks, in dresidual, to those of ln_1 x and of its
    // input through this block's end. Completes the bucket of the next block.
    void backward_block(int layer, auto& gradients) {
        const bool last = layer + 1 == layers();
        const BlockParameters& p = table().block(layer);
        const BlockActivations<Element>& a = act_.block[layer];
        layernorm_backward(last ? Dresidual::overwrite : Dresidual::add, act_.layernorm_after(layer),
                           act_.residual[layer + 1], table().layernorm_after(layer), gradients, p.mlp_proj.bias);
        if (!last) gradients.complete(buckets().of_layer(layer + 1));
        recompute_block(layer);
        linear_backward(act_.dwide, act_.dresidual, a.gelu, p.mlp_proj, rows(), gradients, false, a.pre_gelu,
                        gradients.gradient(p.fc.bias));                                          // to (B, T, H)
        linear_backward(act_.dnormed, act_.dwide, a.ln2.normed, p.fc, rows(), gradients);        // to (B, T, C)
        layernorm_backward(Dresidual::add, a.ln2, a.residual_mid, p.ln2, gradients, p.attn_proj.bias);
        linear_backward(act_.dnormed, act_.dresidual, a.attention, p.attn_proj, rows(), gradients);  // to (B, T, C)
        attention_backward(act_.dwide, act_.dnormed, a);                                         // to (B, T, 3C)
        qkv_bias_backward(p, gradients);
        linear_backward(act_.dnormed, act_.dwide, a.ln1.normed, p.qkv, rows(), gradients);       // to (B, T, C)
    }

    // Recomputes the activations that the recompute level does not store. Bit-identical, except GELU in bf16 on a GPU,
    // whose last bit may differ from the matrix library's.
    void recompute_block(int layer) {
        const BlockParameters& p = table().block(layer);
        const BlockActivations<Element>& a = act_.block[layer];
        switch (setup_.recompute) {
            case Recompute::none: return;
            case Recompute::gelu: return gelu(a.gelu, a.pre_gelu);
            case Recompute::gelu_layernorm:
                pass_.layernorm(a.ln1, act_.residual[layer], p.ln1, rows());
                pass_.layernorm(a.ln2, a.residual_mid, p.ln2, rows());
                return gelu(a.gelu, a.pre_gelu);
            case Recompute::block:
                pass_.layernorm(a.ln1, act_.residual[layer], p.ln1, rows());
                return block_to_gelu(layer);
        }
    }

    // logits = ln_f(x) wte^T
    void head(const Chunk& chunk) {
        pass_.linear(act_.logits, rows_of(act_.final_ln.normed, chunk), table().head(), chunk.rows);
    }
    // Losses of these rows, and on request their dlogits, which overwrite the logits.
    void classify(const MicroBatch& batch, const Chunk& chunk, Dlogits dlogits, float token_weight = 0) {
        head(chunk);
        kernels::classifier<Element>({.logits = act_.logits,                                 // (r, V)
                                      .losses = act_.losses.subspan(chunk.first),            // (r)
                                      .targets = batch.targets.subspan(chunk.first),         // (r)
                                      .rows = chunk.rows, .vocabulary = setup_.config.vocabulary,
                                      .padded_vocabulary = padded_vocabulary(), .scale = token_weight,
                                      .write_dlogits = dlogits == Dlogits::in_place}, stream());
    }
    // Of weights as an update left them, once until the next one.
    void round_head() {
        if constexpr (std::is_same_v<Element, bf16>)
            if (setup_.fp8 != Fp8::off)
                round_weights(act_.fp8, pass_.weight(table().final_ln().weight), pass_.weight(table().final_ln().bias),
                              pass_.weight(table().token_table()), stream());
    }
    // Losses, the gradient of ln_f(x) and the head's part of the token table's, chunk by chunk.
    void head_backward(const MicroBatch& batch, float token_weight, auto& gradients) {
        const device::Range range("head");
        for (std::size_t first = 0; first < shape_.rows(); first += act_.classifier_rows) {
            const Chunk chunk = chunk_at(first);
            if (setup_.fp8 != Fp8::off) {
                head_backward_in_fp8(batch, chunk, token_weight, gradients, first > 0);
                continue;
            }
            classify(batch, chunk, Dlogits::in_place, token_weight);
            linear_backward(rows_of(act_.dnormed, chunk), act_.logits, rows_of(act_.final_ln.normed, chunk),
                            table().head(), chunk.rows, gradients, first > 0);
        }
    }

    void head_backward_in_fp8(const MicroBatch& batch, const Chunk& chunk, float token_weight, auto& gradients,
                              bool adds) {
        if constexpr (std::is_same_v<Element, bf16>) {
            if (setup_.fp8 == Fp8::head_backward) head(chunk);
            head_in_fp8(setup_.fp8, act_.fp8,
                        {.losses = act_.losses.subspan(chunk.first),             // (r)
                         .dweight = gradients.gradient(table().head().weight),   // (V, C)
                         .logits = act_.logits,                                  // (r, V)
                         .dx = rows_of(act_.dnormed, chunk),                     // (r, C)
                         .x = rows_of(act_.final_ln.normed, chunk),              // (r, C)
                         .targets = batch.targets.subspan(chunk.first),          // (r)
                         .rows = chunk.rows, .token_weight = token_weight,
                         .accumulate = gradients.accumulate() || adds},
                        setup_.config, context_.matmul, stream());
        }
    }

    // The operations of a block, over the rows of the micro-batch.

    // The gradient of the weight, added to that of earlier rows of the micro-batch if `adds`; then din = dout weight,
    // multiplied by gelu's derivative if in = gelu(pre_gelu), and its sum over rows, the gradient of the bias in that.
    void linear_backward(Tensor din, Input dout, Input in, const Linear& layer, int rows, auto& gradients,
                         bool adds = false, Input pre_gelu = {}, std::span<float> dbias = {}) {
        context_.matmul.backward_weight<Element>({.dweight = gradients.gradient(layer.weight), .dout = dout, .in = in,
                                                  .rows = rows, .in_channels = layer.in_channels,
                                                  .out_channels = layer.out_channels,
                                                  .accumulate = gradients.accumulate() || adds}, stream());
        context_.matmul.backward_input<Element>({.din = din, .dout = dout, .weight = pass_.weight(layer.weight),
                                                 .pre = pre_gelu, .rows = rows, .in_channels = layer.in_channels,
                                                 .out_channels = layer.out_channels, .dbias = dbias,
                                                 .accumulate = gradients.accumulate()}, stream());
    }
    // dresidual (+)= the gradient through a LayerNorm of x, from dnormed; its sum over rows is the gradient of `bias`,
    // if there is one, of the layer whose output is a summand of x.
    void layernorm_backward(Dresidual dresidual, const LayerNormActivations<Element>& out, Input x, const LayerNorm& ln,
                            auto& gradients, int bias = -1) {
        kernels::layernorm_backward<Element>({.dresidual = act_.dresidual,
                                              .dweight = gradients.gradient(ln.weight),
                                              .dbias = gradients.gradient(ln.bias),
                                              .dresidual_sum = bias < 0 ? std::span<float>()
                                                                        : gradients.gradient(bias),
                                              .scratch = act_.scratch, .dnormed = act_.dnormed,
                                              .residual = x, .weight = pass_.weight(ln.weight), .mean = out.mean,
                                              .rstd = out.rstd, .rows = rows(), .channels = channels(),
                                              .accumulate_dresidual = dresidual == Dresidual::add,
                                              .accumulate_parameters = gradients.accumulate()}, stream());
    }
    // From the gradient of qkv, in dwide, and that of the attention projection's bias.
    void qkv_bias_backward(const BlockParameters& p, auto& gradients) {
        kernels::qkv_bias_gradient<Element>({.dbias = gradients.gradient(p.qkv.bias), .scratch = act_.scratch,
                                             .dqkv = act_.dwide, .dproj_bias = gradients.gradient(p.attn_proj.bias),
                                             .proj_weight = pass_.weight(p.attn_proj.weight), .rows = rows(),
                                             .channels = channels(), .accumulate = gradients.accumulate()}, stream());
    }
    void attention(Tensor out, std::span<float> logsumexp, Input qkv) {
        context_.attention.forward<Element>({.out = out, .logsumexp = logsumexp, .qkv = qkv,
                                             .shape = attention_shape(setup_, shape_), .starts = starts_},
                                            stream());
    }
    void attention_backward(Tensor dqkv, Input dout, const BlockActivations<Element>& a) {
        context_.attention.backward<Element>({.dqkv = dqkv, .delta = act_.delta, .dout = dout, .qkv = a.qkv,
                                              .out = a.attention, .logsumexp = a.logsumexp,
                                              .shape = attention_shape(setup_, shape_), .starts = starts_},
                                             stream());
    }
    void gelu(Tensor out, Input in) {
        const std::size_t size = shape_.rows() * std::size_t(setup_.config.hidden_channels());
        kernels::gelu_forward<Element>({.out = out.first(size), .in = in.first(size)}, stream());
    }

    Chunk chunk_at(std::size_t first) const {
        return {first, int(std::min(act_.classifier_rows, shape_.rows() - first))};
    }
    Tensor rows_of(Tensor tensor, const Chunk& chunk) const {
        return tensor.subspan(chunk.first * std::size_t(channels()), std::size_t(chunk.rows) * std::size_t(channels()));
    }
    std::span<const float> losses() const { return act_.losses.first(shape_.rows()); }
    int rows() const { return int(shape_.rows()); }
    int channels() const { return setup_.config.channels; }
    int layers() const { return setup_.config.layers; }
    int padded_vocabulary() const { return setup_.config.padded_vocabulary(); }
    device::StreamRef stream() const { return context_.stream; }

    const ModelSetup setup_;
    ForwardPass<Element> pass_;
    device::Memory memory_;
    ActivationSpans<Element> act_;
    MicroBatchShape shape_{};  // of the micro-batch in act_
    std::span<const int> starts_{};
    std::vector<std::string> layer_name_;
};

}  // namespace

kernels::AttentionShape attention_shape(const ModelSetup& setup, const MicroBatchShape& shape) {
    return {shape.batch, shape.seq_len, setup.config.heads, setup.config.head_size(), setup.end_of_text.has_value()};
}
const kernels::AttentionPlan& attention_plan(const ModelSetup& setup, const Context& context) {
    return context.attention.plan(setup.dtype, attention_shape(setup, setup.shape), setup.training);
}

ModelBytes model_bytes(const ModelSetup& setup, const ParameterTable& table, const device::Info& device) {
    const std::size_t elements = std::size_t(table.elements());
    const std::size_t master_weights = std::size_t(master_weight_elements(table, setup.dtype, setup.sharding));
    const bool bf16_parameters = setup.dtype == DType::bf16, shared = device::memory_is_host_memory();
    const GradientBuckets buckets(table, setup.sharding);
    return {.parameters = bf16_parameters ? elements * sizeof(bf16) : 0,
            .master_weights = master_weights * sizeof(float),
            .activations = bf16_parameters ? activation_bytes<bf16>(setup, device)
                                           : activation_bytes<float>(setup, device),
            .gathered = bf16_parameters && !buckets.owns_all() && setup.sharding.ranks > 1
                            ? std::size_t(buckets.largest()) * sizeof(float)
                            : 0,
            // Gradients of the largest weight and bias, and where a run that is timed adds to instead.
            .chooses = 2 * ((setup.training ? largest_weight(setup.config) : 0) +
                            std::size_t(setup.config.hidden_channels())) * sizeof(float),
            .load = shared ? elements * (sizeof(float) + (bf16_parameters ? sizeof(bf16) : 0)) : 0};
}

std::unique_ptr<Model> make_model(const ModelSetup& setup, const ParameterTable& table, Context& context) {
    check(setup.config);
    require(setup.shape.seq_len <= setup.config.max_seq_len, "--seq-len", setup.shape.seq_len,
            "at most the model's " + std::to_string(setup.config.max_seq_len) + " positions");
    if (setup.dtype == DType::bf16) return std::make_unique<Gpt2<bf16>>(setup, table, context);
    return std::make_unique<Gpt2<float>>(setup, table, context);
}

}  // namespace llmc
