// throughput.cpp - FLOPs of the model, peak FLOP/s of the device, and a running mean of the step time
#include "llmc/run/log/throughput.h"

#include <ctime>

namespace llmc {

double flops_per_token(const ParameterTable& table, int seq_len, double pair_share) {
    const ModelConfig& config = table.config();
    return 6.0 * double(table.parameters()) + 6.0 * config.layers * config.channels * double(seq_len) * pair_share;
}

std::optional<double> peak_flops(const device::Info& device, kernels::DType dtype, bool tf32) {
    if (!device.peaks) return {};
    return dtype == kernels::DType::bf16 ? device.peaks->bf16 : tf32 ? device.peaks->tf32 : device.peaks->fp32;
}

Throughput::Reading Throughput::read(double seconds, std::int64_t positions, std::int64_t valid_targets) {
    // The first step also plans kernels and touches memory for the first time, so its time is not typical.
    if (steps_++ > 0) {
        seconds_per_position_ = 0.95 * seconds_per_position_ + 0.05 * seconds / double(positions);
        weight_ = 0.95 * weight_ + 0.05;
    }
    Reading reading{.ms = seconds * 1e3, .tokens_per_s = double(positions) / seconds,
                    .valid_tokens_per_s = double(valid_targets) / seconds, .mfu = {}};
    if (peak_) reading.mfu = flops_per_token_ * reading.tokens_per_s / *peak_;
    return reading;
}

std::optional<double> Throughput::seconds_left(std::int64_t positions_left) const {
    if (weight_ == 0) return {};
    return seconds_per_position_ / weight_ * double(positions_left);
}

std::string utc_text() {
    const std::time_t now = std::time(nullptr);
    std::tm time{};
    gmtime_r(&now, &time);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &time);
    return text;
}

}  // namespace llmc
