// step_plan.h - how much every step of a run trains on, from the sizes that flags and checkpoints give it
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

// After `step` steps the further ones have `tokens` tokens.
struct BatchChange {
    std::int64_t step = 0, tokens = 0;
    bool operator==(const BatchChange&) const = default;
};

struct StepSize {
    std::int64_t number = 0;            // of the step, counted from 1
    std::int64_t positions = 0;         // over all ranks
    std::int64_t positions_before = 0;  // of all steps before it
    int micro_batches = 0;              // of this rank
    bool changes = false;               // the step before has another size
    // In steps of the first one's size, which are whole numbers while all have the same: what the schedule sees.
    double begins = 0, ends = 0;
    double relative = 1;                // to the first one's size
    int workers = 1;                    // more: a local step, in which each has gradients of its own

    std::int64_t positions_after() const { return positions_before + positions; }
    std::int64_t positions_of_worker() const { return positions / workers; }
};

class StepPlan {
public:
    StepPlan() = default;
    // Of a run that has made `made` steps, of the sizes `before`, and continues with `schedule`. Throws Error if a size
    // to come, which errors call `size`, has no step, or is not of whole micro-batches of all ranks, and as
    // check(batch).
    StepPlan(const BatchShape& batch, const BatchSchedule& schedule, std::span<const BatchChange> before = {},
             std::int64_t made = 0, const char* size = "a size of --batch-schedule");
    StepSize at(std::int64_t number) const;  // of this step, counted from 1
    // The first `steps` steps: their positions; these in steps of the first one's size.
    std::int64_t positions_in(std::int64_t steps) const { return at(steps + 1).positions_before; }
    double in_first_steps(std::int64_t steps) const { return at(steps + 1).begins; }
    const BatchShape& batch() const { return batch_; }  // of every micro-batch
    // As many steps as it takes for at least this many positions; that fit into them.
    std::int64_t steps_until(std::int64_t positions) const;
    std::int64_t steps_within(std::int64_t positions) const;

    // The sizes of all steps, also of those already made.
    std::vector<BatchChange> changes() const;
    bool is_constant() const { return sizes_.size() == 1; }
    // Tokens of the steps to come: the fewest, the most, and the most that divide all; the fewest of a worker.
    std::int64_t smallest() const, largest() const, common() const;
    std::int64_t smallest_of_worker() const { return smallest() / workers_; }
    std::int64_t micro_batches(std::int64_t positions) const { return positions / batch_.global_positions(); }

    // The number of steps in all; empty: a time ends the run, or there are no steps.
    std::optional<std::int64_t> total;
    // Sets the length of the run in tokens: `total` becomes steps_within(tokens) or steps_until(tokens).
    void set_length(std::int64_t tokens, bool within);
    std::optional<std::int64_t> length() const { return length_; }  // in tokens, if that sets it
    bool ends_after(std::int64_t made) const { return total == made; }
    // After `made` steps; only if the total is known.
    std::int64_t positions_left(std::int64_t made) const { return positions_in(total.value()) - positions_in(made); }
    // The steps after the first `made` are local steps of this number of workers.
    void set_workers(int workers, std::int64_t made) { workers_ = workers, local_after_ = made; }

private:
    struct Size {
        std::int64_t made, positions, before;  // steps before the first one of this size, and their positions
    };
    void append(std::int64_t made, std::int64_t positions);
    void require_whole(const char* size, std::int64_t positions) const;
    std::span<const Size> to_come() const { return std::span(sizes_).subspan(made_); }

    BatchShape batch_{};
    std::vector<Size> sizes_;
    std::size_t made_ = 0;  // of these sizes, those that no step to come has
    std::optional<std::int64_t> length_;
    int workers_ = 1;
    std::int64_t local_after_ = 0;  // steps
};
}  // namespace llmc
