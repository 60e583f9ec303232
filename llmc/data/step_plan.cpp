// step_plan.cpp - the sizes of steps
#include "llmc/data/step_plan.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/integers.h"
#include "llmc/base/number_text.h"
#include "llmc/base/value_text.h"

namespace llmc {

StepPlan::StepPlan(const BatchShape& batch, std::int64_t positions) : batch_(batch) {
    check(batch);
    const std::int64_t at_once = batch.global_positions();
    positions_ = positions > 0 ? positions : at_once;
    const std::int64_t below = positions_ / at_once * at_once;
    std::string meant;  // 64k as 65536
    for (const auto& [decimal, binary] : {std::pair{1e3, 10}, {1e6, 20}, {1e9, 30}})
        if (const double power = std::ldexp(double(positions_) / decimal, binary);
            std::fmod(power, double(at_once)) == 0)
            meant = "; or " + text_of_number(std::int64_t(power)) + ", if k, M, G mean powers of 1024";
    if (positions_ != below)
        fail("--total-batch-tokens", positions_,
             "a multiple of --micro-batch * --seq-len * ranks = " + std::to_string(batch.micro_batch) + " * " +
                 std::to_string(batch.seq_len) + " * " + std::to_string(batch.world) + " = " + std::to_string(at_once),
             (below == 0 ? "the nearest is " + std::to_string(at_once)
                         : "the nearest are " + std::to_string(below) + " and " + std::to_string(below + at_once)) +
                 meant);
    require(positions_ / at_once <= std::numeric_limits<int>::max(), "--total-batch-tokens", positions_,
            "at most 2147483647 micro-batches of " + counted(at_once, "token"));
    micro_batches_ = int(positions_ / at_once);
}

StepSize StepPlan::at(std::int64_t step) const {
    return {.positions = positions_, .positions_before = step * positions_, .micro_batches = micro_batches_,
            .begins = double(step), .ends = double(step + 1)};
}

std::int64_t StepPlan::steps_until(std::int64_t positions) const { return ceil_div(positions, positions_); }
std::int64_t StepPlan::steps_within(std::int64_t positions) const { return positions / positions_; }

}  // namespace llmc
