// throughput.h - the speed of a run: milliseconds per step, tokens per second, model FLOPs utilization (MFU), time left
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/device/device.h"
#include "llmc/weights/parameters.h"

namespace llmc {

// Forward and backward pass of one token: 6 FLOPs per parameter and 6 * layers * channels * seq_len for causal
// attention (llm.c's convention); times the share of the pairs of a row that attention within documents computes.
double flops_per_token(const ParameterTable& table, int seq_len, double pair_share = 1);

// The device's peak FLOP/s for matrix products of this type; empty: not known.
std::optional<double> peak_flops(const device::Info& device, kernels::DType dtype, bool tf32);

class Throughput {
public:
    Throughput(double flops_per_token, std::optional<double> peak) : flops_per_token_(flops_per_token), peak_(peak) {}

    struct Reading {
        double ms = 0, tokens_per_s = 0, valid_tokens_per_s = 0;
        std::optional<double> mfu;  // 0 to 1
    };
    Reading read(double seconds, std::int64_t positions, std::int64_t valid_targets);

    // From a running mean over about the last 20 steps; empty before the second step.
    std::optional<double> seconds_left(std::int64_t positions_left) const;
    int steps() const { return steps_; }

private:
    double flops_per_token_;
    std::optional<double> peak_;
    double seconds_per_position_ = 0, weight_ = 0;
    int steps_ = 0;
};

// The current UTC time in ISO 8601: "2026-11-23T07:54:00Z".
std::string utc_text();

}  // namespace llmc
