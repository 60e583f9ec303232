// model.h - GPT-2: loss, gradients and logits of one micro-batch
//
//   x = wte[token] + wpe[position];   per block: x += proj(attention(ln_1 x)),  x += proj(gelu(fc(ln_2 x)));   logits =
//                                     ln_f(x) wte^T
//
// Everything enqueues on the context's stream and returns; results are ready when the stream has passed this point.
// Source: Radford et al. 2019; sizes and initialisation: parameters.h.
#pragma once
#include <functional>
#include <memory>

#include "kernels/attention/attention.h"
#include "kernels/device/device.h"
#include "kernels/device/memory.h"
#include "kernels/matmul/matmul.h"
#include "llmc/comm/communicator.h"
#include "llmc/model/activations.h"
#include "llmc/model/context.h"
#include "llmc/model/gradient_buckets.h"
#include "llmc/weights/parameters.h"

namespace llmc {

class GradientExchange;

// One micro-batch on the device. Buckets (kernels/embedding.h) are needed for the backward pass only.
struct MicroBatch {
    std::span<const int> tokens, targets;
    std::span<const int> bucket_token, bucket_start, bucket_row;
    MicroBatchShape shape;
};

struct ModelSetup {
    ModelConfig config;
    kernels::DType dtype = kernels::DType::fp32;
    MicroBatchShape shape{};         // the largest micro-batch
    Recompute recompute = Recompute::none;
    bool training = true;       // false: activations are not kept
    Sharding sharding{};        // in bf16, master weights of this rank's shards only at stage 1 and 2
};

// What the model asks of attention.
kernels::AttentionProblem attention_problem(const ModelSetup& setup);

// Device bytes by purpose, counted without allocating: for the memory plan.
struct ModelBytes {
    std::size_t parameters, master_weights, activations;  // in fp32 the parameters are the master weights
    std::size_t gathered;                          // by master_weights_on_host(), where this rank has only its shards
};
ModelBytes model_bytes(const ModelSetup& setup);

class Model {
public:
    virtual ~Model();  // waits for parameters on their way

    const ParameterTable& table() const { return table_; }
    kernels::DType dtype() const { return setup_.dtype; }
    // All of them, or in bf16 at stage 1 and 2 those of this rank's shards (gradient_buckets.h).
    std::span<float> master_weights() const { return master_weights_.span(); }
    bool has_all_master_weights() const { return std::int64_t(master_weights_.size()) == table_.elements(); }
    // The working parameters in bf16; in fp32 they are the master weights.
    std::span<kernels::bf16> rounded_parameters() const { return rounded_.span(); }

    // Sets master weights and working parameters from a host array of table().elements() floats; waits.
    void load(std::span<const float> host);
    // The master weights of one tensor after another, for a checkpoint: every rank calls this, since shards are
    // gathered, and rank 0 alone may call what it returns, until the next update or load(). What that returns is valid
    // until its next call. Both wait.
    std::function<std::span<const float>(int tensor)> master_weights_on_host();

    // The working parameters of a bucket are gathered by the group up to `event`: whoever reads them here waits for it.
    void parameters_arrive(int bucket, CommEvent event) { arriving_[std::size_t(bucket)] = event; }
    void wait_for_parameters() const {
        for (int bucket = 0; bucket < buckets_.size(); ++bucket) wait_for_parameters(bucket);
    }
    void wait_for_parameters(int bucket) const {
        context_.communicator->wait(context_.stream, arriving_[std::size_t(bucket)]);
    }

    // gradients' losses and gradients (+)= those of the micro-batch, each token with weight token_weight.
    virtual void forward_backward(const MicroBatch& batch, float token_weight, GradientExchange& gradients) = 0;
    // loss_sum[0] += sum of the losses over valid targets.
    virtual void evaluate(const MicroBatch& batch, std::span<double> loss_sum) = 0;
    // Logits over the vocabulary (not its padding) after each of `rows` positions from `first_row` on, of one sequence
    // on the host; waits. Throws Error if the sequence is longer than the largest micro-batch or the model's positions.
    virtual std::vector<float> logits(std::span<const int> tokens, int first_row, int rows) = 0;

protected:
    Model(const ModelSetup& setup, Context& context);

    Context& context_;
    ModelSetup setup_;
    ParameterTable table_;
    GradientBuckets buckets_;
    std::vector<CommEvent> arriving_;
    device::Array<float> master_weights_;
    device::Array<kernels::bf16> rounded_;
    std::vector<std::byte> host_copy_;  // of master_weights_on_host()
};

// The context must outlive the model. Parameters are undefined until load().
std::unique_ptr<Model> make_model(const ModelSetup& setup, Context& context);

}  // namespace llmc
