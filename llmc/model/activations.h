// activations.h - the activations that one micro-batch stores between its forward and its backward pass
//
// They share one allocation: the same code counts the bytes for the memory plan and assigns the spans.
//
// Shapes: B sequences of T positions, C channels, H = 4C hidden channels of the MLP, NH heads, V the padded vocabulary.
// A block stores 16 B T C elements; with recomputation fewer:
//   none            16
//   gelu            12   without gelu's output
//   gelu+layernorm  10   also without the normalized rows
//   block            1   only the block's input
#pragma once
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/bias_gradient.h"
#include "kernels/device/memory.h"
#include "kernels/embedding.h"
#include "kernels/fp8.h"
#include "kernels/layernorm.h"
#include "llmc/base/names.h"
#include "llmc/model/fp8_head.h"
#include "llmc/model/gradient_buckets.h"
#include "llmc/weights/model_config.h"

namespace llmc {

enum class Recompute { none, gelu, gelu_layernorm, block };
inline constexpr Named<Recompute> kRecomputeLevels[] = {{"none", Recompute::none},
                                                        {"gelu", Recompute::gelu},
                                                        {"gelu+layernorm", Recompute::gelu_layernorm},
                                                        {"block", Recompute::block}};

// A sum that overflows 64 bits becomes the maximum, so that a plan that large is refused like any that does not fit.
inline std::size_t saturating_sum(std::size_t a, std::size_t b) {
    return a + b < a ? std::numeric_limits<std::size_t>::max() : a + b;
}

// Assigns consecutive aligned spans of an allocation; with a null base it only counts the bytes.
class Arena {
public:
    explicit Arena(std::byte* base) : base_(base) {}
    template <class Element>
    std::span<Element> take(std::size_t count) {
        const std::size_t at = used_, bytes = round_up(count * sizeof(Element), kernels::kTensorAlignment);
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

struct ModelSetup {
    ModelConfig config;
    kernels::DType dtype = kernels::DType::fp32;
    MicroBatchShape shape{};         // the largest micro-batch
    Recompute recompute = Recompute::none;
    bool training = true;       // false: activations are not stored
    Fp8 fp8 = Fp8::off;         // in bf16, for training
    Sharding sharding{};        // in bf16 at stages 1 and 2, a rank stores master weights of its shards only
    std::optional<int> end_of_text{};  // with --document-mask: it starts documents, which do not see each other
};

// Rows per chunk of the head and the classifier, because all logits of a large micro-batch would not fit in
// `logits_bytes`. Chunks except the last are full tiles of the matrix products if that allows at least one tile.
inline std::size_t classifier_rows(const ModelSetup& setup, std::size_t logits_bytes, std::size_t element_bytes) {
    const std::size_t rows = setup.shape.rows();
    const std::size_t row_bytes = std::size_t(setup.config.padded_vocabulary()) * element_bytes;
    constexpr std::size_t kTile = 256;
    std::size_t most = std::max<std::size_t>(1, logits_bytes / row_bytes);
    if (rows <= most) return rows;
    const std::size_t multiple = most < kTile ? 1 : kTile;
    most = most / multiple * multiple;
    return round_up(ceil_div(rows, ceil_div(rows, most)), multiple);
}

template <class Element>
struct LayerNormActivations {
    std::span<Element> normed;            // (B, T, C), normalized
    std::span<float> mean, rstd;          // (B, T)
};

template <class Element>
struct BlockActivations {
    LayerNormActivations<Element> ln1;    // of the block's input
    std::span<Element> qkv;               // (B, T, 3C)
    std::span<Element> attention;         // (B, T, C)
    std::span<float> logsumexp;           // (B, NH, T)
    std::span<Element> residual_mid;      // (B, T, C): input + proj(attention)
    LayerNormActivations<Element> ln2;    // of residual_mid
    std::span<Element> pre_gelu, gelu;    // (B, T, H)
};

template <class Element>
struct ActivationSpans {
    std::vector<std::span<Element>> residual;          // (B, T, C) each: every block's input, then the last output
    std::vector<BlockActivations<Element>> block;
    LayerNormActivations<Element> final_ln;            // of the last block's output
    const LayerNormActivations<Element>& layernorm_after(int layer) const {
        return std::size_t(layer) + 1 < block.size() ? block[std::size_t(layer) + 1].ln1 : final_ln;
    }
    std::span<float> losses;                           // (B, T)
    std::span<Element> branch;                         // (B, T, C): scratch, a projection before its addition
    std::span<Element> logits;                         // (classifier_rows, V): one chunk
    Fp8Head fp8;                                       // empty without it, and in a model that is only evaluated
    std::size_t classifier_rows = 0;
    // Gradients; empty in a model that is only evaluated.
    std::span<Element> dresidual, dnormed;             // (B, T, C)
    std::span<Element> dwide;                          // (B, T, H), or (B, T, 3C) for qkv
    std::span<float> delta;                            // (B, NH, T)
    std::span<float> scratch;                          // of kernels that sum over rows
};

// `logits_bytes`: the limit of the logits buffer (device::Info).
template <class Element>
ActivationSpans<Element> lay_out_activations(Arena& arena, const ModelSetup& setup, std::size_t logits_bytes) {
    const ModelConfig& config = setup.config;
    const bool training = setup.training;
    const Recompute recompute = setup.recompute;
    const std::size_t rows = setup.shape.rows(), narrow = rows * std::size_t(config.channels),
                      hidden = rows * std::size_t(config.hidden_channels()), scores = std::size_t(config.heads) * rows;
    const bool keep_block = training && recompute != Recompute::block;
    const bool keep_normed = keep_block && recompute != Recompute::gelu_layernorm,
               keep_gelu = keep_normed && recompute != Recompute::gelu;
    struct Fields {
        bool normed, gelu, rest;
    };
    const auto fill = [&](BlockActivations<Element>& block, const Fields& fields) {
        if (fields.normed)
            for (auto* norm : {&block.ln1, &block.ln2}) norm->normed = arena.take<Element>(narrow);
        if (fields.gelu) block.gelu = arena.take<Element>(hidden);
        if (!fields.rest) return;
        block.qkv = arena.take<Element>(3 * narrow);
        block.attention = arena.take<Element>(narrow);
        block.residual_mid = arena.take<Element>(narrow);
        block.pre_gelu = arena.take<Element>(hidden);
        for (auto* norm : {&block.ln1, &block.ln2})
            for (auto* statistic : {&norm->mean, &norm->rstd}) *statistic = arena.take<float>(rows);
        block.logsumexp = arena.take<float>(scores);
    };
    ActivationSpans<Element> spans;
    // All blocks share the memory of activations that are not stored.
    BlockActivations<Element> shared;
    fill(shared, {.normed = !keep_normed, .gelu = !keep_gelu, .rest = !keep_block});
    for (int layer = 0; layer < config.layers; ++layer) {
        BlockActivations<Element> block = shared;
        fill(block, {.normed = keep_normed, .gelu = keep_gelu, .rest = keep_block});
        spans.block.push_back(block);
    }
    // Without a backward pass two residual buffers are enough: one is read, the other written.
    for (int layer = 0; layer <= config.layers; ++layer)
        spans.residual.push_back(training || layer < 2 ? arena.take<Element>(narrow)
                                                       : spans.residual[std::size_t(layer) - 2]);
    spans.final_ln.normed = arena.take<Element>(narrow);
    spans.final_ln.mean = arena.take<float>(rows);
    spans.final_ln.rstd = arena.take<float>(rows);
    spans.losses = arena.take<float>(rows);
    spans.branch = arena.take<Element>(narrow);
    spans.classifier_rows = classifier_rows(setup, logits_bytes, sizeof(Element));
    const bool in_fp8 = training && setup.fp8 != Fp8::off;
    const std::size_t vocabulary = std::size_t(config.padded_vocabulary()), channels = std::size_t(config.channels),
                      chunk = spans.classifier_rows, padded_chunk = std::size_t(kernels::fp8_padded_rows(int(chunk)));
    // The transposed gradients of a few rows in fp8 take more than their logits.
    spans.logits = arena.take<Element>((in_fp8 ? std::max(chunk, padded_chunk / sizeof(Element)) : chunk) * vocabulary);
    if (in_fp8) {
        for (auto* weight : {&spans.fp8.weight, &spans.fp8.weight_transposed})
            *weight = arena.take<kernels::e4m3>(vocabulary * channels);
        spans.fp8.scales = arena.take<float>(kernels::kFp8Scales);
        spans.fp8.scratch = arena.take<float>(kernels::fp8_scales_scratch(vocabulary * channels));
        spans.fp8.x = arena.take<kernels::e4m3>(chunk * channels);
        spans.fp8.x_transposed = arena.take<kernels::e4m3>(padded_chunk * channels);
        spans.fp8.dlogits = arena.take<kernels::e5m2>(chunk * vocabulary);
        spans.fp8.dlogits_transposed = {reinterpret_cast<kernels::e5m2*>(spans.logits.data()),
                                        padded_chunk * vocabulary};
    }
    if (training) {
        spans.dresidual = arena.take<Element>(narrow);
        spans.dnormed = arena.take<Element>(narrow);
        spans.dwide = arena.take<Element>(hidden);
        spans.delta = arena.take<float>(scores);
        spans.scratch = arena.take<float>(std::max({kernels::layernorm_backward_scratch(config.channels),
                                                    kernels::bias_gradient_scratch(config.channels),
                                                    kernels::embedding_backward_scratch(rows, config.channels)}));
    }
    return spans;
}

}  // namespace llmc
