// parameters.h - the table of a model's tensors, which allocation, initialization, weight decay, checkpoints and export
// use
//
// All tensors are in one flat array in table order, each starting at a multiple of kTensorMultiple elements, so that
// parameters, master weights, Adam moments and gradients of any type have the same offsets. Gaps between tensors are
// always 0.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/adamw.h"
#include "llmc/base/element_range.h"
#include "llmc/weights/model_config.h"

namespace llmc {

// Elements, so that a tensor is aligned to kTensorAlignment bytes in any type.
inline constexpr std::int64_t kTensorMultiple = kernels::kTensorAlignment;

struct ParameterSpec {
    // Hugging Face's name without the leading "transformer.": "wte.weight", "h.0.attn.c_attn.weight", ...
    std::string name;
    std::int64_t rows, columns;   // columns 1: a vector of `rows` elements. Matrices are (out_channels, in_channels)
    std::int64_t rows_in_files;   // `rows` without the padding of the vocabulary
    float init_deviation = 0;     // normal with mean 0; 0: constant `init_value`
    float init_value = 0;
    bool decays = false;          // weight decay applies: matrices and embeddings
    bool transposed_in_files = false;  // Hugging Face's Conv1D stores (in_channels, out_channels)
    std::int64_t offset = 0;      // elements from the start of the flat array

    std::int64_t size() const { return rows * columns; }
    ElementRange range_in_files() const { return {offset, rows_in_files * columns}; }  // of the flat array
    bool is_vector() const { return columns == 1; }
};

// weight and bias are indices into ParameterTable::tensors(); the table gives access to them by name only.
struct Linear {  // out = in weight^T + bias
    int weight, bias;  // (out_channels, in_channels), (out_channels); bias -1: none
    int in_channels, out_channels;
    bool has_bias() const { return bias >= 0; }
};
struct LayerNorm {
    int weight, bias;  // (channels) each
};
// In the order of the forward pass and of the flat array; every block has the same tensors.
struct BlockParameters {
    LayerNorm ln1;
    Linear qkv, attn_proj;
    LayerNorm ln2;
    Linear fc, mlp_proj;

    std::array<Linear, 4> linears() const { return {qkv, attn_proj, fc, mlp_proj}; }
    int first_tensor() const { return ln1.weight; }
    int tensors() const { return mlp_proj.bias + 1 - ln1.weight; }
};

class ParameterTable {
public:
    explicit ParameterTable(const ModelConfig& config);

    const ModelConfig& config() const { return config_; }
    const std::vector<ParameterSpec>& tensors() const { return tensors_; }
    // size of the flat array, including the gaps between tensors; a multiple of kTensorMultiple
    std::int64_t elements() const { return elements_; }
    // number of parameters without gaps; counts the tied head once, includes the padding of the vocabulary
    std::int64_t parameters() const;
    // parameters in padding rows of the vocabulary, which are 0; parameters() - padding() is the published number
    std::int64_t padding() const;

    int token_table() const { return token_table_; }
    // logits = in wte^T: tied to the token table
    Linear head() const { return {token_table_, -1, config_.channels, config_.padded_vocabulary()}; }
    int position_table() const { return position_table_; }
    const BlockParameters& block(int layer) const { return blocks_[layer]; }
    const LayerNorm& final_ln() const { return final_ln_; }
    // The LayerNorm of a block's output.
    const LayerNorm& layernorm_after(int layer) const {
        return layer + 1 < config_.layers ? block(layer + 1).ln1 : final_ln_;
    }

    // One tensor's elements of a flat array.
    template <class T> std::span<T> view(std::span<T> flat, int tensor) const {
        return flat.subspan(std::size_t(tensors_[tensor].offset), std::size_t(tensors_[tensor].size()));
    }

    // For the optimizer: the ranges of the flat array with and without weight decay.
    std::vector<kernels::DecaySegment> decay_segments() const;
    struct Count { int tensors = 0; std::int64_t elements = 0; };
    Count decayed() const, not_decayed() const;

    // Fills a host array of elements() floats with N(0, deviation^2) in table order, with one random stream per tensor,
    // so that a tensor's values do not depend on other tensors. Padding rows of the vocabulary are 0.
    void initialise(std::span<float> flat, std::uint64_t seed) const;

private:
    int add(ParameterSpec spec);
    Count count(bool decays) const;

    ModelConfig config_;
    std::vector<ParameterSpec> tensors_;
    std::vector<BlockParameters> blocks_;
    std::int64_t elements_ = 0;
    int token_table_ = 0, position_table_ = 0;
    LayerNorm final_ln_{};
};

}  // namespace llmc
