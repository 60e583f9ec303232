// reference_model.h - GPT-2, its gradient and AdamW in fp64 with plain loops, as a reference for the program
//
// Written from the formulas; it shares only the parameter table with the program. Arrays of parameters and gradients
// are doubles in the layout of the table. The softmax is over the vocabulary without its padding.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "llmc/model/fp8_head.h"
#include "llmc/weights/parameters.h"

namespace test {

// tokens, targets: (batch, seq_len). A target kernels::kIgnoreTarget has no loss. `targets` may be empty if only logits
// are requested.
struct ReferenceBatch {
    std::span<const int> tokens, targets;
    int batch, seq_len;
    int rows() const { return batch * seq_len; }
};

struct ReferenceLoss {
    double sum = 0;                  // nats over all valid targets
    std::int64_t valid_targets = 0;
    double mean() const { return sum / double(valid_targets); }  // NaN without valid targets
};

struct ReferenceGradient {
    ReferenceLoss loss;
    std::vector<double> gradient;    // of the mean loss; 0 without valid targets
};

// (rows, vocabulary)
std::vector<double> reference_logits(const llmc::ParameterTable& table, std::span<const double> parameters,
                                     const ReferenceBatch& batch);
ReferenceLoss reference_loss(const llmc::ParameterTable& table, std::span<const double> parameters,
                             const ReferenceBatch& batch);
// With the roundings of the head in fp8 (llmc/model/fp8_head.h), and no others.
ReferenceGradient reference_gradient(const llmc::ParameterTable& table, std::span<const double> parameters,
                                     const ReferenceBatch& batch, llmc::Fp8 fp8 = llmc::Fp8::off);

// AdamW with decoupled decay, bias correction and clipping by the global norm.
struct ReferenceAdamW {
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
    double max_norm = 1;             // 0: no clipping
    std::int64_t step = 0;
    std::vector<double> m, v;        // created by the first update

    // One step on `parameters`. Returns the gradient's norm before clipping.
    double update(const llmc::ParameterTable& table, std::span<double> parameters, std::span<const double> gradient,
                  double learning_rate);
};

// Muon with Nesterov momentum for the matrices of the blocks, and AdamW for the rest.
struct ReferenceMuon {
    ReferenceAdamW adamw{};
    double momentum = 0.95, learning_rate_factor = 1;
    bool cautious_decay = false;
    std::vector<double> m{};         // created by the first update; only the matrices' elements are used

    void update(const llmc::ParameterTable& table, std::span<double> parameters, std::span<const double> gradient,
                double learning_rate);
};

}  // namespace test
