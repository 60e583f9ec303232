// muon.h - Muon for the weight matrices of the blocks, of which each has one owner (gradient_buckets.h), and AdamW for
// all other parameters
//
//   M = mu M + (1 - mu) g;  U = (1 - mu) g + mu M;  O = orthogonalized U
//   W = (1 - lr decay) W - lr 0.2 sqrt(max(rows, columns)) O
//
// With this factor an update is as large as AdamW's, about 0.2 lr per element, so that learning rate and weight decay
// are AdamW's. Query, key and value are orthogonalized apart. A skipped step changes nothing.
//
// The owner alone has the momentum, at every ZeRO stage, and computes the update: stages 0 and 1 give the same bits,
// and so does stage 2 with one micro-batch. Matrices of one shape are processed together, as far as they have 16
// million elements, with working memory of up to four times as many; that limit has not been tuned. Then all parameters
// are gathered, bucket by bucket, while the next forward pass runs.
//
// Source    kernels/muon.h, kernels/matmul/newton_schulz.h; factor: Liu et al. 2025, arXiv 2502.16982.
#pragma once
#include "llmc/weights/parameters.h"

namespace llmc {

struct MuonSettings {
    double momentum = 0.95;
    double learning_rate_factor = 1;  // the matrices' learning rate over that of the rest
    bool cautious_decay = false;      // of the matrices, only where it does not oppose the update
};

// The multiplications of orthogonalizing in a step on the busiest rank, divided by those of that rank's forward and
// backward passes with the weights of the blocks. `tokens`: of the step, on all ranks.
double muon_share(const ParameterTable& table, int ranks, double tokens);

}  // namespace llmc
