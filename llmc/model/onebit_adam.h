// onebit_adam.h - 1-bit Adam: AdamW until the second moment is frozen; after that the ranks average the momentum
// instead of gradients, with 1 bit per element (onebit_mean.h)
//
// Warm-up     bit-identical to AdamW; also maintains a slower second moment.
// Freeze      after update T_w: v = the bias-corrected second moment, constant from now on; errors are 0; elements with
//             v = 0, which never had a gradient, are masked.
// Compressed  on every rank: x = beta1 m + (1 - beta1) R g, where g is the rank's gradient, scaled as in the sum over
//             the R ranks, times the common clip coefficient; m = mean of x over ranks; then AdamW's update with the
//             frozen v.
//             If nodes are the workers (OnebitSettings::ranks_per_node): g is the sum over the node's ranks, each of
//             which has a shard of it, and R the number of nodes.
//
// In this phase no rank has the sum of the gradients: its norm, for the clip coefficient, skipped steps and the noise
// scale, is estimated from a sketch (step_sums.h). A single rank uses its own gradient uncompressed.
//
// Source    Tang et al. 2021, arXiv 2102.02888.
#pragma once
#include <memory>

#include "llmc/model/optimizer.h"

namespace llmc {

std::unique_ptr<Optimizer> make_onebit_adam(const Model& model, GradientExchange& gradients,
                                            const OptimizerSettings& settings, Context& context);

// For every tensor of the table, whether `exclude` matches it, so that it keeps full gradients. Throws Error if that is
// not a regular expression, or matches none or all of the tensors.
std::vector<bool> tensors_left_out(const ParameterTable& table, const std::string& exclude);

// Bytes in addition to AdamW's. Throws Error as tensors_left_out() does.
OptimizerBytes onebit_bytes(const ParameterTable& table, const Sharding& sharding, const OptimizerSettings& settings);

}  // namespace llmc
