// activations.h - what one micro-batch leaves in memory between its forward and its backward pass
//
// One allocation, laid out in one place: the same code counts the bytes for the memory plan and hands out the spans.
// With R = batch * seq_len rows of C channels, a block keeps 16 R C elements; recomputing leaves less:
//   none 16,  gelu 12 (not gelu's output),  gelu+layernorm 10 (not the normed rows either),  block 1 (only the block's
//             input)
#pragma once
#include <algorithm>
#include <limits>
#include <string_view>
#include <vector>

#include "kernels/bias_gradient.h"
#include "kernels/device/error.h"
#include "kernels/device/memory.h"
#include "kernels/layernorm.h"
#include "llmc/base/names.h"
#include "llmc/weights/model_config.h"

namespace llmc {

enum class Recompute { none, gelu, gelu_layernorm, block };
inline constexpr Named<Recompute> kRecomputeLevels[] = {{"none", Recompute::none},
                                                        {"gelu", Recompute::gelu},
                                                        {"gelu+layernorm", Recompute::gelu_layernorm},
                                                        {"block", Recompute::block}};

// Bytes beyond 64 bits count as all of them: a plan that large is refused like any other that does not fit.
inline std::size_t saturating_sum(std::size_t a, std::size_t b) {
    return a + b < a ? std::numeric_limits<std::size_t>::max() : a + b;
}

// Hands out aligned shards of an allocation one after another; without an allocation it only counts.
class Arena {
public:
    explicit Arena(std::byte* base) : base_(base) {}
    template <class Element>
    std::span<Element> take(std::size_t count) {
        using kernels::kTensorAlignment;
        const std::size_t at = used_, bytes = (count * sizeof(Element) + kTensorAlignment - 1) / kTensorAlignment *
                                              kTensorAlignment;
        used_ = saturating_sum(used_, bytes);
        return base_ ? std::span<Element>(reinterpret_cast<Element*>(base_ + at), count) : std::span<Element>();
    }
    std::size_t bytes() const { return used_; }

private:
    std::byte* base_;
    std::size_t used_ = 0;
};

struct MicroBatchShape {
    int batch, seq_len;
    std::size_t rows() const { return std::size_t(batch) * seq_len; }
};

// Rows that go through the head and the classifier at once: all logits of a large micro-batch would not fit.
inline std::size_t classifier_rows(const ModelConfig& config, std::size_t rows, std::size_t element_bytes,
                                   std::size_t chunk_bytes) {
    const std::size_t row_bytes = std::size_t(config.padded_vocabulary()) * element_bytes;
    const std::size_t most = std::max<std::size_t>(1, chunk_bytes / row_bytes), chunks = (rows + most - 1) / most;
    return (rows + chunks - 1) / chunks;
}

template <class T>
struct BlockActivations {
    std::span<T> ln1, qkv, attention, residual_mid, ln2, pre_gelu, gelu;
    std::span<float> ln1_mean, ln1_rstd, logsumexp, ln2_mean, ln2_rstd;
};

template <class T>
struct ActivationSpans {
    std::vector<std::span<T>> residual;          // the input of every block, then the output of the last
    std::vector<BlockActivations<T>> block;
    std::span<T> final_normed;
    std::span<float> final_mean, final_rstd, losses;
    std::span<T> branch;                         // (rows, channels): a projection on its way into the residual
    std::span<T> logits;                         // (classifier rows, padded vocabulary)
    std::size_t classifier_rows = 0;
    // Gradients; empty in a model that only evaluates.
    std::span<T> dresidual, dnormed, dwide;      // (rows, channels) twice, (rows, 4 channels)
    std::span<float> delta, layernorm_scratch;
};

template <class T>
ActivationSpans<T> lay_out_activations(Arena& arena, const ModelConfig& config, MicroBatchShape shape,
                                       Recompute recompute, bool training,
                                     std::size_t chunk_bytes) {
    const std::size_t rows = shape.rows(), narrow = rows * std::size_t(config.channels),
                      scores = std::size_t(config.heads) * rows;
    const bool keep_block = training && recompute != Recompute::block;
    const bool keep_normed = keep_block && recompute != Recompute::gelu_layernorm,
               keep_gelu = keep_normed && recompute != Recompute::gelu;
    ActivationSpans<T> spans;
    // What is not kept shares one shard among all blocks.
    BlockActivations<T> shared;
    const auto fill = [&](BlockActivations<T>& block, bool normed, bool gelu, bool rest) {
        if (normed) block.ln1 = arena.take<T>(narrow), block.ln2 = arena.take<T>(narrow);
        if (gelu) block.gelu = arena.take<T>(4 * narrow);
        if (!rest) return;
        block.qkv = arena.take<T>(3 * narrow);
        block.attention = arena.take<T>(narrow);
        block.residual_mid = arena.take<T>(narrow);
        block.pre_gelu = arena.take<T>(4 * narrow);
        for (auto* statistic : {&block.ln1_mean, &block.ln1_rstd, &block.ln2_mean, &block.ln2_rstd})
            *statistic = arena.take<float>(rows);
        block.logsumexp = arena.take<float>(scores);
    };
    fill(shared, !keep_normed, !keep_gelu, !keep_block);
    for (int layer = 0; layer < config.layers; ++layer) {
        BlockActivations<T> block = shared;
        fill(block, keep_normed, keep_gelu, keep_block);
        spans.block.push_back(block);
    }
    // Without a backward pass the stream of residuals needs two shards: the one read and the one written.
    for (int layer = 0; layer <= config.layers; ++layer)
        spans.residual.push_back(training || layer < 2 ? arena.take<T>(narrow)
                                                       : spans.residual[std::size_t(layer) - 2]);
    spans.final_normed = arena.take<T>(narrow);
    spans.final_mean = arena.take<float>(rows);
    spans.final_rstd = arena.take<float>(rows);
    spans.losses = arena.take<float>(rows);
    spans.branch = arena.take<T>(narrow);
    spans.classifier_rows = classifier_rows(config, rows, sizeof(T), chunk_bytes);
    spans.logits = arena.take<T>(spans.classifier_rows * std::size_t(config.padded_vocabulary()));
    if (training) {
        spans.dresidual = arena.take<T>(narrow);
        spans.dnormed = arena.take<T>(narrow);
        spans.dwide = arena.take<T>(4 * narrow);
        spans.delta = arena.take<float>(scores);
        spans.layernorm_scratch = arena.take<float>(kernels::layernorm_backward_scratch(config.channels));
    }
    return spans;
}

}  // namespace llmc
