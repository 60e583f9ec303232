// schedule.h - the learning-rate schedule
//
//   warm-up   step < warmup:            peak (step + 1) / warmup
//   cosine    warmup <= step <= total:  low + (1 + cos(pi (step - warmup) / (total - warmup))) / 2 * (peak - low),
//             low = peak * final_fraction
//   linear    the same with a straight line from peak to low
//   constant  peak
//   wsd       peak, then a straight line to low over the last fifth of the steps (warm-up, stable, decay: Hu et al.
//             2024, arXiv 2404.06395)
//   later     low (constant: peak)
#pragma once
#include <cstdint>

#include "llmc/run/options/options.h"

namespace llmc {

struct Schedule {
    LrSchedule kind = LrSchedule::cosine;
    double peak = 6e-4, final_fraction = 0.1;
    std::int64_t warmup_steps = 0, total_steps = 0;

    double learning_rate(std::int64_t step) const;  // step from 0
};

}  // namespace llmc
