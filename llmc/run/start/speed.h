// speed.h - how fast this machine trains: two small models make a few steps each, and the time of others follows from
// their work
#pragma once
#include <string>

#include "llmc/model/context.h"
#include "llmc/model/tuning.h"
#include "llmc/run/options/run_settings.h"
#include "llmc/weights/model_config.h"

namespace llmc {

// The work of one token's forward and backward pass, and of one update.
struct Work {
    double flops, elements;         // per token: of matrix products and attention; of activations, read or written
    double parameters, orthogonal;  // per update: parameters; FLOPs of Muon's orthogonalization, 0 without it
};
Work work_of(const ModelConfig& config, std::int64_t seq_len, bool muon, double pair_share = 1);

// Seconds of each, for all ranks together.
struct Speed {
    double flop = 0, element = 0, parameter = 0, orthogonal = 0;
    kernels::DType dtype = kernels::DType::fp32;  // that it was measured with,
    double bf16_gain = 1;                         // time of a pass in fp32 / in bf16
    std::string source{};                         // "measured here"; empty: not known

    bool is_known() const { return !source.empty(); }
    // Of a training step, per token of it. `tokens`: of the step, over all ranks.
    double seconds_per_token(const ModelConfig& config, std::int64_t seq_len, std::int64_t tokens, bool muon,
                             double pair_share = 1) const;
};

// Of this machine with `settings`, whose data type counts if it is decided; otherwise the faster one is taken. Stored
// with the autotuning results; with `confirms` it is measured again, and the fastest counts, as earlier starts may have
// had a busy machine. At most about 5 seconds on a CPU and 1 on a GPU. Every rank calls it and gets the same; throws
// SharedError.
Speed measure_speed(const RunSettings& settings, int vocabulary, bool confirms, Tuning& tuning, Context& context);

// From --speed, of this model with these settings: of no other.
Speed speed_of_model(const RunSettings& settings, const ModelConfig& config);
// From --peak-tflops, for `ranks` of them: the share of the peak that training reached on an H200.
Speed speed_of_peak(double tflops, int ranks);

}  // namespace llmc
