// onebit_adam.h - 1-bit Adam: AdamW, until the second moment is frozen; from then on the momentum is what the ranks
// average, at a bit an element (onebit_mean.h)
//
// Warm-up     AdamW bit for bit, and beside it a slower second moment.
// Freeze      after update T_w: v = the second moment with its bias correction, which stays; errors are 0; elements
//             with v = 0, which never had a gradient, are masked.
// Compressed  every rank: x = beta1 m + (1 - beta1) R g, g its own gradient, as it enters the sum over the R ranks,
//             times the clip coefficient of all; m = mean of x over ranks; the update as AdamW's, v in place of its
//             own.
//             Where nodes are the workers (OnebitSettings::ranks_of_node): g is the sum over the node's ranks, of
//             which each of them has a shard, and R the number of nodes.
//
// Nobody has the sum of gradients then: its norm, for the clip coefficient, skipped steps and the noise scale, is
// estimated from a sketch (step_sums.h). One rank takes its own gradient as it is.
//
// Source    Tang et al. 2021, arXiv 2102.02888.
#pragma once
#include <memory>

#include "llmc/model/optimizer.h"

namespace llmc {

std::unique_ptr<Optimizer> make_onebit_adam(const Model& model, GradientExchange& gradients,
                                            const AdamWSettings& settings, Context& context);

// Of every tensor of the table, whether it keeps full gradients, as `exclude` finds it. Throws Error where that is no
// regular expression, or finds none or all of the tensors.
std::vector<bool> tensors_left_out(const ParameterTable& table, const std::string& exclude);

// Bytes on the device besides AdamW's. Throws Error as tensors_left_out().
std::size_t onebit_bytes(const ParameterTable& table, const Sharding& sharding, const OnebitSettings& settings);

}  // namespace llmc
