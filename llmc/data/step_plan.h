// step_plan.h - how much every step of a run trains on; nothing else computes sizes of steps
#pragma once
#include <cstdint>
#include <optional>

#include "llmc/data/batch.h"

namespace llmc {

struct StepSize {
    std::int64_t positions;         // over all ranks
    std::int64_t positions_before;  // of all steps before it
    int micro_batches;              // of this rank
    // In steps of the first one's size, which are whole numbers while all have the same: what the schedule sees.
    double begins, ends;

    std::int64_t positions_after() const { return positions_before + positions; }
};

class StepPlan {
public:
    StepPlan() = default;
    // Steps of `positions`, whole micro-batches of every rank; 0: one of each. Throws Error if they are not whole, and
    // as check(batch).
    StepPlan(const BatchShape& batch, std::int64_t positions);

    // Of the step after `step` others. All steps have the same size.
    StepSize at(std::int64_t step) const;
    const BatchShape& batch() const { return batch_; }  // of every micro-batch
    // As many steps as it takes for at least this many positions; that fit into them.
    std::int64_t steps_until(std::int64_t positions) const;
    std::int64_t steps_within(std::int64_t positions) const;

    // The number of steps in all; empty: a time ends the run, or there are no steps.
    std::optional<std::int64_t> total;
    bool ends_at(std::int64_t step) const { return total == step; }
    // Of the steps after `step` of them; only if the total is known.
    std::int64_t positions_left(std::int64_t step) const {
        return at(total.value()).positions_before - at(step).positions_before;
    }

private:
    BatchShape batch_{};
    std::int64_t positions_ = 0;
    int micro_batches_ = 0;
};

}  // namespace llmc
