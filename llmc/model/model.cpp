#include "llmc/model/model.h"

#include "kernels/classifier.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "llmc/model/gradient_exchange.h"

namespace llmc {
namespace {

using kernels::bf16;
using kernels::DType;

// Bytes of logits held at once. CPU: 512 rows of 50304 floats cost 5 % more head time than all 4096 at once and save
// 720 MB.
#if defined(TRAIN_GPT2_CUDA)
constexpr std::size_t kLogitsBytes = std::size_t(1) << 30;
#else
constexpr std::size_t kLogitsBytes = std::size_t(104) << 20;
#endif

// Lengths of sequences for sampling are rounded up to this, so that few shapes occur; causality keeps the padding out
// of the results.
constexpr int kLogitsSeqLen = 64;

template <class T>
class Gpt2 final : public Model {
public:
    Gpt2(const ModelSetup& setup, Context& context) : Model(setup, context) {
        Arena counter(nullptr);
        lay_out_activations<T>(counter, setup.config, setup.shape, setup.recompute, setup.training, kLogitsBytes);
        memory_ = device::Memory(counter.bytes());
        Arena arena(memory_.data());
        act_ = lay_out_activations<T>(arena, setup.config, setup.shape, setup.recompute, setup.training, kLogitsBytes);
    }

    void forward_backward(const MicroBatch& batch, float token_weight, GradientExchange& gradients) override {
        forward(batch);
        const bool accumulate = gradients.accumulate();
        gradients.open(buckets_.embeddings());
        for (std::size_t first = 0; first < batch.shape.rows(); first += act_.classifier_rows) {
            const HeadRows head = classify(batch, first, token_weight, true);
            context_.matmul.backward_input<T>({.din = rows_of(act_.dnormed, head), .dout = act_.logits,
                                               .weight = parameter(table_.token_table()), .pre = {}, .rows = head.rows,
                                               .in_channels = channels(),
                                               .out_channels = padded_vocabulary()}, stream());
            context_.matmul.backward_weight<T>({.dweight = gradients.gradient(table_.token_table()), .dbias = {},
                                                .dout = act_.logits, .in = rows_of(act_.final_normed, head),
                                                .rows = head.rows, .in_channels = channels(),
                                                .out_channels = padded_vocabulary(),
                                                .accumulate = accumulate || first > 0}, stream());
        }
        kernels::accumulate_losses(gradients.loss_sum(), act_.losses.first(batch.shape.rows()), stream());

        gradients.open(buckets_.of_tensor(table_.final_ln_weight()));
        layernorm_backward(table_.final_ln_weight(), table_.final_ln_bias(), act_.residual[layers()], act_.final_mean,
                           act_.final_rstd, batch, false, gradients);
        for (int layer = layers() - 1; layer >= 0; --layer) {
            if (layer < layers() - 1) gradients.open(buckets_.of_layer(layer));
            backward_block(layer, batch, gradients);
            gradients.complete(buckets_.of_layer(layer));
        }
        kernels::embedding_backward<T>({.dtoken_table = gradients.gradient(table_.token_table()),
                                        .dposition_table = gradients.gradient(table_.position_table()),
                                        .dout = act_.dresidual, .bucket_token = batch.bucket_token,
                                        .bucket_start = batch.bucket_start, .bucket_row = batch.bucket_row,
                                        .batch = batch.shape.batch, .seq_len = batch.shape.seq_len,
                                        .channels = channels(), .max_seq_len = setup_.config.max_seq_len,
                                        .accumulate_positions = accumulate}, stream());
        gradients.complete(buckets_.embeddings());
    }

    void evaluate(const MicroBatch& batch, std::span<double> loss_sum) override {
        forward(batch);
        for (std::size_t first = 0; first < batch.shape.rows(); first += act_.classifier_rows)
            classify(batch, first, 0.0f, false);
        kernels::accumulate_losses(loss_sum, act_.losses.first(batch.shape.rows()), stream());
    }

    std::vector<float> logits(std::span<const int> tokens, int first_row, int rows) override {
        const int longest = std::min(setup_.config.max_seq_len,
                                     int(std::min<std::size_t>(setup_.shape.rows(), 1 << 30)));
        require(int(tokens.size()) <= longest && !tokens.empty(), "the length of a sequence", tokens.size(),
                "1 to " + std::to_string(longest) + " tokens");
        std::vector<int> padded(tokens.begin(), tokens.end());
        padded.resize(
            std::size_t(std::min(longest, (int(tokens.size()) + kLogitsSeqLen - 1) / kLogitsSeqLen * kLogitsSeqLen)),
            0);
        const device::Array<int> on_device(padded, stream());
        forward({.tokens = on_device.span(), .targets = {}, .bucket_token = {}, .bucket_start = {}, .bucket_row = {},
                 .shape = {1, int(padded.size())}});
        std::vector<float> result;
        std::vector<T> row(static_cast<std::size_t>(padded_vocabulary()));
        for (int first = first_row; first < first_row + rows; first += int(act_.classifier_rows)) {
            const HeadRows head{std::size_t(first), std::min(int(act_.classifier_rows), first_row + rows - first)};
            head_logits(head);
            for (int r = 0; r < head.rows; ++r) {
                device::copy_to_host(row.data(), act_.logits.data() + std::size_t(r) * row.size(),
                                     row.size() * sizeof(T), stream());
                context_.stream.sync();
                for (int c = 0; c < setup_.config.vocabulary; ++c) {
                    if constexpr (std::is_same_v<T, bf16>)
                        result.push_back(kernels::bf16_to_float(row[std::size_t(c)]));
                    else result.push_back(row[std::size_t(c)]);
                }
            }
        }
        return result;
    }

private:
    // Rows [first, first + rows) of the micro-batch, small enough for the logits' memory.
    struct HeadRows {
        std::size_t first;
        int rows;
    };

    int channels() const { return setup_.config.channels; }
    int layers() const { return setup_.config.layers; }
    int padded_vocabulary() const { return setup_.config.padded_vocabulary(); }
    device::StreamRef stream() const { return context_.stream; }
    std::span<const T> parameter(int tensor) const {
        if constexpr (std::is_same_v<T, float>)
            return table_.view(std::span<const float>(master_weights_.span()), tensor);
        else return table_.view(std::span<const T>(rounded_.span()), tensor);
    }
    std::span<T> rows_of(std::span<T> tensor, const HeadRows& head) const {
        return tensor.subspan(head.first * std::size_t(channels()), std::size_t(head.rows) * std::size_t(channels()));
    }

    // out (rows, out_channels) = in weight^T + bias
    void linear(std::span<T> out, std::span<T> pre, std::span<const T> in, int weight, int bias, int rows,
                int in_channels, int out_channels) {
        context_.matmul.forward<T>({.out = out, .pre = pre, .in = in, .weight = parameter(weight),
                                    .bias = parameter(bias), .rows = rows, .in_channels = in_channels,
                                    .out_channels = out_channels}, stream());
    }
    // din = dout weight, through gelu where its input `pre` is given; then the gradients of weight and bias
    void linear_backward(std::span<T> din, std::span<const T> dout, std::span<const T> in, std::span<const T> pre,
                         int weight, int bias, int rows, int in_channels, int out_channels,
                         GradientExchange& gradients) {
        context_.matmul.backward_weight<T>({.dweight = gradients.gradient(weight), .dbias = gradients.gradient(bias),
                                            .dout = dout, .in = in, .rows = rows, .in_channels = in_channels,
                                            .out_channels = out_channels,
                                            .accumulate = gradients.accumulate()}, stream());
        context_.matmul.backward_input<T>({.din = din, .dout = dout, .weight = parameter(weight), .pre = pre,
                                           .rows = rows, .in_channels = in_channels,
                                           .out_channels = out_channels}, stream());
    }
    void layernorm(std::span<T> normed, std::span<float> mean, std::span<float> rstd, std::span<const T> residual,
                   int weight, int bias, int rows) {
        kernels::layernorm_forward<T>({.normed = normed, .mean = mean, .rstd = rstd, .residual = residual,
                                       .weight = parameter(weight), .bias = parameter(bias), .rows = rows,
                                       .channels = channels()}, stream());
    }
    // residual = left + branch, normed = its layer normalisation
    void add_branch(std::span<T> residual, std::span<T> normed, std::span<float> mean, std::span<float> rstd,
                    std::span<const T> left, int weight, int bias, int rows) {
        kernels::residual_layernorm_forward<T>({.residual = residual, .normed = normed, .mean = mean, .rstd = rstd,
                                                .left = left, .right = act_.branch, .weight = parameter(weight),
                                                .bias = parameter(bias), .rows = rows,
                                                .channels = channels()}, stream());
    }
    // dresidual (+)= gradient through a layer normalisation of `residual`, from dnormed
    void layernorm_backward(int weight, int bias, std::span<const T> residual, std::span<const float> mean,
                            std::span<const float> rstd, const MicroBatch& batch, bool add,
                            GradientExchange& gradients) {
        kernels::layernorm_backward<T>({.dresidual = act_.dresidual, .dweight = gradients.gradient(weight),
                                        .dbias = gradients.gradient(bias), .scratch = act_.layernorm_scratch,
                                        .dnormed = act_.dnormed, .residual = residual, .weight = parameter(weight),
                                        .mean = mean, .rstd = rstd, .rows = int(batch.shape.rows()),
                                        .channels = channels(), .accumulate_dresidual = add,
                                        .accumulate_parameters = gradients.accumulate()}, stream());
    }

    void forward(const MicroBatch& batch) {
        require(batch.shape.rows() <= setup_.shape.rows(), "the rows of a micro-batch", batch.shape.rows(),
                "at most " + std::to_string(setup_.shape.rows()));
        const int rows = int(batch.shape.rows());
        wait_for_parameters(buckets_.embeddings());
        kernels::embedding_forward<T>({.out = act_.residual[0], .tokens = batch.tokens,
                                       .token_table = parameter(table_.token_table()),
                                       .position_table = parameter(table_.position_table()), .batch = batch.shape.batch,
                                       .seq_len = batch.shape.seq_len, .channels = channels()}, stream());
        const BlockParameters& first = table_.block(0);
        wait_for_parameters(buckets_.of_layer(0));
        layernorm(act_.block[0].ln1, act_.block[0].ln1_mean, act_.block[0].ln1_rstd, act_.residual[0], first.ln1_weight,
                  first.ln1_bias, rows);
        for (int layer = 0; layer < layers(); ++layer) {
            forward_block(layer, batch.shape);
            const BlockActivations<T>& block = act_.block[layer];
            const BlockParameters& p = table_.block(layer);
            linear(act_.branch, {}, block.gelu, p.mlp_proj_weight, p.mlp_proj_bias, rows, 4 * channels(), channels());
            if (layer + 1 < layers()) {
                wait_for_parameters(buckets_.of_layer(layer + 1));
                const BlockActivations<T>& next = act_.block[layer + 1];
                const BlockParameters& q = table_.block(layer + 1);
                add_branch(act_.residual[layer + 1], next.ln1, next.ln1_mean, next.ln1_rstd, block.residual_mid,
                           q.ln1_weight, q.ln1_bias, rows);
            } else {
                add_branch(act_.residual[layer + 1], act_.final_normed, act_.final_mean, act_.final_rstd,
                           block.residual_mid, table_.final_ln_weight(), table_.final_ln_bias(), rows);
            }
        }
    }

    // From the block's normed input to gelu's output.
    void forward_block(int layer, MicroBatchShape shape) {
        const BlockActivations<T>& block = act_.block[layer];
        const BlockParameters& p = table_.block(layer);
        const int rows = int(shape.rows()), heads = setup_.config.heads;
        linear(block.qkv, {}, block.ln1, p.qkv_weight, p.qkv_bias, rows, channels(), 3 * channels());
        context_.attention.forward<T>({.out = block.attention, .logsumexp = block.logsumexp, .qkv = block.qkv,
                                       .batch = shape.batch, .seq_len = shape.seq_len, .heads = heads,
                                       .head_size = setup_.config.head_size()}, stream());
        linear(act_.branch, {}, block.attention, p.attn_proj_weight, p.attn_proj_bias, rows, channels(), channels());
        add_branch(block.residual_mid, block.ln2, block.ln2_mean, block.ln2_rstd, act_.residual[layer], p.ln2_weight,
                   p.ln2_bias, rows);
        linear(block.gelu, block.pre_gelu, block.ln2, p.fc_weight, p.fc_bias, rows, channels(), 4 * channels());
    }

    // Computes again what the recompute level did not keep, in the same way and so to the same bits.
    void recompute_block(int layer, MicroBatchShape shape) {
        if (setup_.recompute == Recompute::none) return;
        const BlockActivations<T>& block = act_.block[layer];
        const BlockParameters& p = table_.block(layer);
        const int rows = int(shape.rows());
        if (setup_.recompute == Recompute::gelu) return kernels::gelu_forward<T>(gelu_of(block, shape), stream());
        layernorm(block.ln1, block.ln1_mean, block.ln1_rstd, act_.residual[layer], p.ln1_weight, p.ln1_bias, rows);
        if (setup_.recompute == Recompute::block) return forward_block(layer, shape);
        layernorm(block.ln2, block.ln2_mean, block.ln2_rstd, block.residual_mid, p.ln2_weight, p.ln2_bias, rows);
        kernels::gelu_forward<T>(gelu_of(block, shape), stream());
    }
    kernels::GeluForward<T> gelu_of(const BlockActivations<T>& block, MicroBatchShape shape) const {
        const std::size_t size = shape.rows() * 4 * std::size_t(channels());
        return {.out = block.gelu.first(size), .in = block.pre_gelu.first(size)};
    }

    // On entry dresidual is the gradient of the block's output, on return that of its input.
    void backward_block(int layer, const MicroBatch& batch, GradientExchange& gradients) {
        recompute_block(layer, batch.shape);
        const BlockActivations<T>& block = act_.block[layer];
        const BlockParameters& p = table_.block(layer);
        const int rows = int(batch.shape.rows()), c = channels();
        linear_backward(act_.dwide, act_.dresidual, block.gelu, block.pre_gelu, p.mlp_proj_weight, p.mlp_proj_bias,
                        rows, 4 * c, c, gradients);
        linear_backward(act_.dnormed, act_.dwide, block.ln2, {}, p.fc_weight, p.fc_bias, rows, c, 4 * c, gradients);
        layernorm_backward(p.ln2_weight, p.ln2_bias, block.residual_mid, block.ln2_mean, block.ln2_rstd, batch, true,
                           gradients);
        linear_backward(act_.dnormed, act_.dresidual, block.attention, {}, p.attn_proj_weight, p.attn_proj_bias, rows,
                        c, c, gradients);
        context_.attention.backward<T>({.dqkv = act_.dwide, .delta = act_.delta, .dout = act_.dnormed, .qkv = block.qkv,
                                        .out = block.attention, .logsumexp = block.logsumexp,
                                        .batch = batch.shape.batch, .seq_len = batch.shape.seq_len,
                                        .heads = setup_.config.heads,
                                        .head_size = setup_.config.head_size()}, stream());
        linear_backward(act_.dnormed, act_.dwide, block.ln1, {}, p.qkv_weight, p.qkv_bias, rows, c, 3 * c, gradients);
        layernorm_backward(p.ln1_weight, p.ln1_bias, act_.residual[layer], block.ln1_mean, block.ln1_rstd, batch, true,
                           gradients);
    }

    void head_logits(const HeadRows& head) {
        context_.matmul.forward<T>({.out = act_.logits, .pre = {}, .in = rows_of(act_.final_normed, head),
                                    .weight = parameter(table_.token_table()), .bias = {}, .rows = head.rows,
                                    .in_channels = channels(), .out_channels = padded_vocabulary()}, stream());
    }
    // Losses of the rows from `first` on, and their dlogits in place of the logits where asked.
    HeadRows classify(const MicroBatch& batch, std::size_t first, float token_weight, bool write_dlogits) {
        const HeadRows head{first, int(std::min(act_.classifier_rows, batch.shape.rows() - first))};
        head_logits(head);
        kernels::classifier<T>({.logits = act_.logits, .losses = act_.losses.subspan(first),
                                .targets = batch.targets.subspan(first), .rows = head.rows,
                                .vocabulary = setup_.config.vocabulary, .padded_vocabulary = padded_vocabulary(),
                                .scale = token_weight, .write_dlogits = write_dlogits}, stream());
        return head;
    }

    device::Memory memory_;
    ActivationSpans<T> act_;
};

std::int64_t master_elements(const ParameterTable& table, const ModelSetup& setup) {
    return setup.dtype == DType::bf16 && setup.sharding.stage > 0
               ? GradientBuckets(table, setup.sharding).shard_elements()
               : table.elements();
}

template <class T>
std::size_t activation_bytes(const ModelSetup& setup) {
    Arena counter(nullptr);
    lay_out_activations<T>(counter, setup.config, setup.shape, setup.recompute, setup.training, kLogitsBytes);
    return counter.bytes();
}

}  // namespace

Model::Model(const ModelSetup& setup, Context& context)
    : context_(context),
      setup_(setup),
      table_(setup.config),
      buckets_(table_, setup.sharding),
      arriving_(std::size_t(buckets_.size())),
      master_weights_(std::size_t(master_elements(table_, setup))),
      rounded_(setup.dtype == DType::bf16 ? std::size_t(table_.elements()) : 0) {}

Model::~Model() {
    try {
        for (const CommEvent event : arriving_) context_.communicator->sync(event);
    } catch (...) {  // whoever uses the communicator next is told
    }
}

void Model::load(std::span<const float> host) {
    require(std::int64_t(host.size()) == table_.elements(), "the number of parameters", host.size(),
            std::to_string(table_.elements()));
    wait_for_parameters();
    if (has_all_master_weights()) master_weights_.upload(host, context_.stream);
    else
        for (const GradientBucket& bucket : buckets_.all()) {
            const auto from = bucket.shard_in_flat(host);
            device::copy_to_device(bucket.in_shards(master_weights_.span()).data(), from.data(), from.size_bytes(),
                                   context_.stream);
        }
    if (rounded_.size() > 0) {
        std::vector<bf16> rounded(host.size());
        std::transform(host.begin(), host.end(), rounded.begin(), kernels::bf16_from_float);
        rounded_.upload(rounded, context_.stream);
        context_.stream.sync();  // before the temporary goes
    }
    context_.stream.sync();
}

std::function<std::span<const float>(int tensor)> Model::master_weights_on_host() {
    wait_for_parameters();  // in fp32 they are the master weights
    if (has_all_master_weights())
        return [this](int tensor) -> std::span<const float> {
            const auto master = table_.view(master_weights_.span(), tensor);
            return {static_cast<const float*>(
                        device::on_host(master.data(), master.size_bytes(), host_copy_, context_.stream)),
                    master.size()};
        };
    Communicator& communicator = *context_.communicator;
    const bool reader = communicator.rank() == 0;
    const auto flat = std::make_shared<std::vector<float>>(reader ? std::size_t(table_.elements()) : 0);
    const device::Array<float> gathered(std::size_t(buckets_.largest()));
    for (const GradientBucket& bucket : buckets_.all()) {
        const auto whole = gathered.span().first(std::size_t(bucket.size));
        communicator.group_begin(context_.stream);
        communicator.all_gather<float>(whole, bucket.in_shards(master_weights_.span()));
        communicator.wait(context_.stream, communicator.group_end());
        if (reader)
            device::copy_to_host(bucket.in_flat(std::span(*flat)).data(), whole.data(), whole.size_bytes(),
                                 context_.stream);
    }
    context_.stream.sync();
    return [this, flat](int tensor) -> std::span<const float> {
        return table_.view(std::span<const float>(*flat), tensor);
    };
}

kernels::AttentionProblem attention_problem(const ModelSetup& setup) {
    return {setup.dtype, {setup.shape.batch, setup.shape.seq_len, setup.config.heads, setup.config.head_size()},
            setup.training};
}

ModelBytes model_bytes(const ModelSetup& setup) {
    const ParameterTable table(setup.config);
    const std::size_t elements = std::size_t(table.elements());
    const std::size_t master_weights = std::size_t(master_elements(table, setup));
    const bool bf16_parameters = setup.dtype == DType::bf16;
    return {.parameters = bf16_parameters ? elements * sizeof(bf16) : 0,
            .master_weights = master_weights * sizeof(float),
            .activations = bf16_parameters ? activation_bytes<bf16>(setup) : activation_bytes<float>(setup),
            .gathered = master_weights < elements
                            ? std::size_t(GradientBuckets(table, setup.sharding).largest()) * sizeof(float)
                            : 0};
}

std::unique_ptr<Model> make_model(const ModelSetup& setup, Context& context) {
    check(setup.config);
    require(setup.shape.seq_len <= setup.config.max_seq_len, "--seq-len", setup.shape.seq_len,
            "at most the model's " + std::to_string(setup.config.max_seq_len) + " positions");
    if (setup.dtype == DType::bf16) return std::make_unique<Gpt2<bf16>>(setup, context);
    return std::make_unique<Gpt2<float>>(setup, context);
}

}  // namespace llmc
