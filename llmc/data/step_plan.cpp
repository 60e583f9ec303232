// step_plan.cpp - the sizes of steps
#include "llmc/data/step_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/integers.h"
#include "llmc/base/number_text.h"
#include "llmc/base/value_text.h"

namespace llmc {
StepPlan::StepPlan(const BatchShape& batch, const BatchSchedule& schedule, std::span<const BatchChange> before,
                   std::int64_t made, const char* size)
    : batch_(batch) {
    check(batch);
    for (const BatchChange& change : before)
        if (change.step < made) append(change.step, change.tokens);
    auto next = std::ranges::upper_bound(schedule, sizes_.empty() ? 0 : positions_in(made), {}, &ScheduledBatch::from);
    append(made, std::prev(next)->tokens);
    made_ = std::size_t(std::ranges::upper_bound(sizes_, made, {}, &Size::made) - sizes_.begin()) - 1;
    for (std::int64_t last = made; next != schedule.end(); ++next) {
        const std::int64_t step = steps_until(next->from);
        require(step > last, "--batch-schedule: the size from " + counted(std::prev(next)->from, "token") + " on",
                "without a step", "a step of each size", "leave it out, or let the next one begin later");
        append(last = step, next->tokens);
    }
    for (const Size& each : to_come()) require_whole(size, each.positions);
}

void StepPlan::set_length(std::int64_t tokens, bool within) {
    length_ = tokens;
    total = within ? steps_within(tokens) : steps_until(tokens);
}

void StepPlan::append(std::int64_t made, std::int64_t positions) {
    if (!sizes_.empty() && sizes_.back().positions == positions) return;
    sizes_.push_back({made, positions, sizes_.empty() ? 0 : positions_in(made)});
}

void StepPlan::require_whole(const char* size, std::int64_t positions) const {
    const std::int64_t at_once = batch_.global_positions(), below = positions / at_once * at_once;
    std::string meant;  // 64k as 65536
    for (const auto& [decimal, binary] : {std::pair{1e3, 10}, {1e6, 20}, {1e9, 30}})
        if (const double power = std::ldexp(double(positions) / decimal, binary);
            std::fmod(power, double(at_once)) == 0)
            meant = "; or " + text_of_number(std::int64_t(power)) + ", if k, M, G mean powers of 1024";
    if (positions != below)
        fail(size, positions,
             "a multiple of --micro-batch * --seq-len * ranks = " + std::to_string(batch_.micro_batch) + " * " +
                 std::to_string(batch_.seq_len) + " * " + std::to_string(batch_.world) + " = " +
                 std::to_string(at_once),
             (below == 0 ? "the nearest is " + std::to_string(at_once)
                         : "the nearest are " + std::to_string(below) + " and " + std::to_string(below + at_once)) +
                 meant);
    require(positions / at_once <= std::numeric_limits<int>::max(), size, positions,
            "at most 2147483647 micro-batches of " + counted(at_once, "token"));
}

StepSize StepPlan::at(std::int64_t number) const {
    const std::int64_t made = number - 1, first = sizes_.front().positions;
    const auto size = std::prev(std::ranges::upper_bound(sizes_, made, {}, &Size::made));
    const std::int64_t before = size->before + (made - size->made) * size->positions;
    const auto in_first_steps = [&](std::int64_t positions) { return double(positions) / double(first); };
    return {.number = number, .positions = size->positions, .positions_before = before,
            .micro_batches = int(micro_batches(size->positions)), .changes = made > 0 && made == size->made,
            .begins = in_first_steps(before), .ends = in_first_steps(before + size->positions),
            .relative = in_first_steps(size->positions), .workers = made >= local_after_ ? workers_ : 1};
}

std::int64_t StepPlan::steps_until(std::int64_t positions) const {
    const auto next = std::ranges::lower_bound(sizes_, positions, {}, &Size::before);
    const Size& size = next == sizes_.begin() ? sizes_.front() : *std::prev(next);
    return size.made + ceil_div(positions - size.before, size.positions);
}

std::int64_t StepPlan::steps_within(std::int64_t positions) const {
    const Size& size = *std::prev(std::ranges::upper_bound(sizes_, positions, {}, &Size::before));
    return size.made + (positions - size.before) / size.positions;
}

std::vector<BatchChange> StepPlan::changes() const {
    std::vector<BatchChange> changes;
    for (const Size& size : sizes_) changes.push_back({size.made, size.positions});
    return changes;
}

std::int64_t StepPlan::smallest() const { return std::ranges::min(to_come(), {}, &Size::positions).positions; }
std::int64_t StepPlan::largest() const { return std::ranges::max(to_come(), {}, &Size::positions).positions; }
std::int64_t StepPlan::common() const {
    std::int64_t common = 0;
    for (const Size& size : to_come()) common = std::gcd(common, size.positions);
    return common;
}

}  // namespace llmc
