// step_plan.h - how much every step of a run trains on; nothing else computes sizes of steps
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "llmc/data/batch.h"

namespace llmc {

// --batch-schedule: a step that begins after at least `from` tokens, and before those of the next entry, has `tokens`.
struct ScheduledBatch {
    std::int64_t from, tokens;
};
using BatchSchedule = std::vector<ScheduledBatch>;  // the first one from 0, each from more tokens than the one before

// The step that follows `step` others, and all after it, have `tokens` tokens.
struct BatchChange {
    std::int64_t step = 0, tokens = 0;
    bool operator==(const BatchChange&) const = default;
};

struct StepSize {
    std::int64_t positions;         // over all ranks
    std::int64_t positions_before;  // of all steps before it
    int micro_batches;              // of this rank
    bool changes;                   // the step before has another size
    // In steps of the first one's size, which are whole numbers while all have the same: what the schedule sees.
    double begins, ends;
    double relative;  // to the first one's size

    std::int64_t positions_after() const { return positions_before + positions; }
};

class StepPlan {
public:
    StepPlan() = default;
    // Of a run that has made `first_step` steps, of the sizes `made`, and continues with `schedule`. Throws Error if a
    // size to come, which errors call `size`, has no step, or is not of whole micro-batches of all ranks, and as
    // check(batch).
    StepPlan(const BatchShape& batch, const BatchSchedule& schedule, std::span<const BatchChange> made = {},
             std::int64_t first_step = 0, const char* size = "a size of --batch-schedule");
    StepSize at(std::int64_t step) const;  // of the step after `step` others
    const BatchShape& batch() const { return batch_; }  // of every micro-batch
    // As many steps as it takes for at least this many positions; that fit into them.
    std::int64_t steps_until(std::int64_t positions) const;
    std::int64_t steps_within(std::int64_t positions) const;

    // The sizes of all steps, also of those already made.
    std::vector<BatchChange> changes() const;
    bool is_constant() const { return sizes_.size() == 1; }
    // Tokens of the steps to come: the fewest, the most, and the most that divide all.
    std::int64_t smallest() const, largest() const, common() const;
    std::int64_t micro_batches(std::int64_t positions) const { return positions / batch_.global_positions(); }

    // The number of steps in all; empty: a time ends the run, or there are no steps.
    std::optional<std::int64_t> total;
    // Sets the length of the run in tokens: `total` becomes steps_within(tokens) or steps_until(tokens).
    void set_length(std::int64_t tokens, bool within);
    std::optional<std::int64_t> length() const { return length_; }  // in tokens, if that sets it
    bool ends_at(std::int64_t step) const { return total == step; }
    // Of the steps after `step` of them; only if the total is known.
    std::int64_t positions_left(std::int64_t step) const {
        return at(total.value()).positions_before - at(step).positions_before;
    }

private:
    struct Size {
        std::int64_t step, positions, before;  // `before`: of all earlier steps
    };
    void append(std::int64_t step, std::int64_t positions);
    void require_whole(const char* size, std::int64_t positions) const;
    std::span<const Size> to_come() const { return std::span(sizes_).subspan(made_); }

    BatchShape batch_{};
    std::vector<Size> sizes_;
    std::size_t made_ = 0;  // of these sizes, those that no step to come has
    std::optional<std::int64_t> length_;
};
}  // namespace llmc
