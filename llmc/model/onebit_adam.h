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
#include "llmc/model/onebit_mean.h"
#include "llmc/model/optimizer.h"

namespace llmc {

// What is averaged with 1 bit per element: the momentum, or the momentum divided by sqrt(v) + eps.
enum class OnebitSpace { momentum, update };

inline constexpr Named<OnebitScale> kOnebitScales[] = {{"bucket", OnebitScale::bucket},
                                                       {"tensor", OnebitScale::tensor},
                                                       {"block", OnebitScale::block}};
inline constexpr Named<OnebitSpace> kOnebitSpaces[] = {{"momentum", OnebitSpace::momentum},
                                                       {"update", OnebitSpace::update}};

struct OnebitSettings {
    // Updates with full gradients before the second moment is frozen. 0: as soon as it has settled, which is checked
    // every settling_updates: the ratio of its sum to the sum at the last check (or the inverse, if smaller) is at
    // least kSettled, and the learning rate is past its warm-up.
    std::int64_t freeze_after = 0, settling_updates = 500;
    static constexpr double kSettled = 0.96;
    std::int64_t lr_warmup_steps = 0;
    OnebitScale scale = OnebitScale::bucket;
    OnebitSpace space = OnebitSpace::update;
    std::string exclude{};       // tensors whose name this regular expression matches keep full gradients and a live v
    // Decay rate of the second moment to freeze, if AdamW's is smaller: with beta2 = 0.95, an average over 20 steps
    // would stay forever, with 23 % of noise in every element. 0: always AdamW's second moment.
    float shadow_beta2 = 0.999f;
    // More than 1: the ranks of each node sum their gradients in full precision, and nodes compress (if more than one).
    int ranks_per_node = 1;
    bool frozen_only = false;    // freezes but never compresses: the baseline of a compressed run
};

inline const OnebitSettings& onebit_of(const OptimizerSettings& settings) {
    return std::any_cast<const OnebitSettings&>(settings.own);
}

// State that depends on the updates so far and is the same on all ranks.
struct OnebitCounts {
    std::int64_t frozen_after = 0;      // updates; 0: not yet frozen
    double moment_sum = 0;              // sum of the second moment to freeze, at the last check, ...
    std::int64_t moment_sum_after = 0;  // ... which was after this number of updates
    bool operator==(const OnebitCounts&) const = default;
};

JsonValue json_of(const OnebitCounts& counts);
// All 0 for null. Throws Error that starts with `where` for values that no run of `updates` updates can have.
OnebitCounts onebit_counts(const JsonValue& json, std::int64_t updates, const std::string& where);

std::unique_ptr<Optimizer> make_onebit_adam(const Model& model, GradientExchange& gradients,
                                            const OptimizerSettings& settings, Context& context);

// For every tensor of the table, whether `exclude` matches it, so that it keeps full gradients. Throws Error if that is
// not a regular expression, or matches none or all of the tensors.
std::vector<bool> tensors_left_out(const ParameterTable& table, const std::string& exclude);

// Bytes in addition to AdamW's. Throws Error as tensors_left_out() does.
OptimizerBytes onebit_bytes(const ParameterTable& table, const Sharding& sharding, const OptimizerSettings& settings);

// Extra compute seconds of a step with the compressed update of `elements`, compared with AdamW's: compression, this
// rank's part of the sums, and the sketch. Measured on half of the elements, at most 2^22, the fastest of three of
// each; the memory is freed, and is less than the optimizer and the gradients will use. Waits for the device.
double measure_compression(std::int64_t elements, int ranks, Context& context);

// That time, and the speed of a rank's link at which the full exchange takes as long as compression plus the exchange
// with 1 bit per element; on slower links compression pays. Ignores overlap with the backward pass. `bytes`: of an
// element in the full exchange of `unit`, a "step" or a "round"; `prefix`: of the line.
OptimizerReport report_compression(const std::string& prefix, const std::string& unit, std::int64_t elements, int ranks,
                                   double bytes, Context& context);

}  // namespace llmc
