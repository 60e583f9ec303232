// model.h - GPT-2: loss and gradients of one micro-batch
//
//   x = wte[token] + wpe[position]
//   per block:  x += attn_proj(attention(qkv(ln_1 x))),  x += mlp_proj(gelu(fc(ln_2 x)))
//   logits = ln_f(x) wte^T
//
// All functions enqueue on the context's stream and return, unless their comment says that they wait. Source: Radford
// et al. 2019; sizes and initialization: parameters.h.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/device/device.h"
#include "kernels/embedding.h"
#include "llmc/model/activations.h"
#include "llmc/model/context.h"
#include "llmc/model/model_weights.h"

namespace llmc {

class GradientExchange;

// One micro-batch on the device.
struct MicroBatch {
    std::span<const int> tokens, targets;
    kernels::RowsByToken<std::span<const int>> sorted;  // for the backward pass only
    MicroBatchShape shape;
    // Within documents (kernels/documents.h); empty if every row is one.
    std::span<const int> starts{};
    kernels::RowsByToken<std::span<const int>> by_position{};  // for the backward pass only
};

kernels::AttentionShape attention_shape(const ModelSetup& setup, const MicroBatchShape& shape);
// How this model's attention is computed.
const kernels::AttentionPlan& attention_plan(const ModelSetup& setup, const Context& context);

// Device bytes by purpose, counted without allocating: for the memory plan.
struct ModelBytes {
    std::size_t parameters, master_weights, activations;  // in fp32 the parameters are the master weights
    std::size_t gathered;  // for copy_master_weights_to_host(), if this rank has only its shards
    std::size_t chooses;   // for choose_products() and the candidates that it times
    std::size_t load;      // for load() and its argument, if host memory is device memory
};
ModelBytes model_bytes(const ModelSetup& setup, const ParameterTable& table, const device::Info& device);

class Model : public ModelWeights {
public:
    virtual ~Model() = default;

    // Adds the losses of the micro-batch, and its gradients with weight token_weight per token, to `gradients`.
    virtual void forward_backward(const MicroBatch& batch, float token_weight, GradientExchange& gradients) = 0;
    // loss_sum[0] += sum of the losses over valid targets.
    virtual void evaluate(const MicroBatch& batch, std::span<double> loss_sum) = 0;
    // The loss in nats of every position of the micro-batch, 0 without a target, on the host; waits.
    virtual std::vector<float> token_losses(const MicroBatch& batch) = 0;
    // Makes the same calls of the matrix library as a step with this micro-batch, on this model's activations, to
    // autotune its algorithms (kernels/tuning); with `accumulating` also those of later micro-batches of a step. Writes
    // gradients to temporary memory and changes only the activations of the model. Waits.
    virtual void choose_products(const MicroBatch& batch, bool accumulating) = 0;

protected:
    using ModelWeights::ModelWeights;
};

// `table` is that of setup.config. The context must outlive the model. Parameters are undefined until load().
std::unique_ptr<Model> make_model(const ModelSetup& setup, const ParameterTable& table, Context& context);

}  // namespace llmc
