// onebit_settings.h - the settings of 1-bit Adam, and its counters in a checkpoint
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "llmc/base/json_value.h"
#include "llmc/base/names.h"
#include "llmc/model/onebit_mean.h"

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

}  // namespace llmc
