// onebit_settings.h - what 1-bit Adam is asked for, and what it keeps in a checkpoint
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/names.h"
#include "llmc/model/onebit_mean.h"

namespace llmc {

// What is averaged at a bit an element: the momentum, or the momentum over sqrt(v) + eps.
enum class OnebitSpace { momentum, update };

inline constexpr Named<OnebitScale> kOnebitScales[] = {{"bucket", OnebitScale::bucket},
                                                       {"tensor", OnebitScale::tensor},
                                                       {"block", OnebitScale::block}};
inline constexpr Named<OnebitSpace> kOnebitSpaces[] = {{"momentum", OnebitSpace::momentum},
                                                       {"update", OnebitSpace::update}};

struct OnebitSettings {
    // Updates with full gradients before the second moment is frozen. 0: as soon as it has settled, which is asked
    // every settling_updates: of its sum and what that was, the smaller is then at least kSettled of the other, and the
    // learning rate past its warm-up.
    std::int64_t freeze_after = 0, settling_updates = 500;
    static constexpr double kSettled = 0.96;
    std::int64_t lr_warmup_steps = 0;
    OnebitScale scale = OnebitScale::bucket;
    OnebitSpace space = OnebitSpace::update;
    std::string exclude{};       // tensors whose name this regular expression finds keep full gradients and a live v
    // Decay rate of the second moment that is frozen, where AdamW's is faster: with beta2 = 0.95 a v of 20 steps would
    // stay for ever, 23 % of noise in every element. 0: always AdamW's own.
    float shadow_beta2 = 0.999f;
    // More than 1: so many ranks of every node add their gradients up in full, and nodes compress; one node does not.
    int ranks_of_node = 1;
    bool frozen_only = false;    // freeze, but never compress: what the compressed run is compared with
    bool compress_alone = false; // one rank compresses, too, where else it takes its own gradient as it is; for tests
};

// What follows from the updates made so far, and is the same on all ranks.
struct OnebitCounts {
    std::int64_t frozen_after = 0;  // updates; 0: not yet
    double moment_sum = 0;          // of the second moment that will be frozen, when it was last asked for, ...
    std::int64_t moment_sum_after = 0;  // ... after so many updates
    bool operator==(const OnebitCounts&) const = default;
};

// The floats that a checkpoint holds beside the moments.
struct OnebitState {
    enum class Kind { none, shadow, errors } kind = Kind::none;
    // shadow: those of the flat array, the same on all ranks; errors: the worker's, then the server's
    std::int64_t elements = 0;
    std::vector<ShardRange> worked{}, served{};  // errors: the worker's and the server's stretches of the flat array
    std::string layout{};  // errors: what they fit: scale, space, and whether nodes are the workers
    std::string nodes{};   // ... of every rank; empty: ranks are the workers
};

}  // namespace llmc
