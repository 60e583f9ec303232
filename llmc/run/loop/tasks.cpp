// tasks.cpp - which task is due, and how long those to come take
#include "llmc/run/loop/tasks.h"

#include <algorithm>
#include <utility>

namespace llmc {
namespace {

// How often a task is due after `made` steps or more, of `total`.
std::int64_t times_due(std::int64_t every, std::int64_t made, std::int64_t total) {
    if (every == 0 || made > total) return 0;
    return total / every - (std::max<std::int64_t>(made, 1) - 1) / every + (total % every != 0);
}

}  // namespace

Tasks::Tasks(std::vector<Task> tasks, const RunControl& control) : control_(control) {
    for (Task& task : tasks) rows_.push_back({.task = std::move(task)});
}

void Tasks::restore(const TrainerState& state, bool branches) {
    made_ = state.step;
    for (auto& [task, done, saved, seconds] : rows_) {
        if (const auto found = state.tasks.find(task.name); found != state.tasks.end()) {
            saved = found->second;
            saved.pending &= task.every > 0;
            if (!task.saves) seconds.last = saved.seconds;
        }
        if (!saved.pending && !(task.saves && branches)) done = made_;
    }
}

void Tasks::reach(std::int64_t made, bool last, bool waits) {
    if (made != std::exchange(made_, made))
        for (auto& [task, done, state, seconds] : rows_)
            state.pending = (waits_ && state.pending) || (may_run(task) && (last || made % task.every == 0));
    waits_ = waits;
    save_now_ = control_.save_requested() || (!waits && control_.checkpoint_by_time());
}

bool Tasks::is_due(const Row& row) const {
    const auto& [task, done, state, seconds] = row;
    if (done == made_) return false;
    if (task.saves)
        return control_.failed() ? made_ > 0 : control_.ends() || save_now_ || (state.pending && !waits_);
    if (!control_.intact() || waits_) return false;
    if (!control_.ends()) return state.pending && !(task.at_the_end && control_.hurries());
    return (state.pending || may_run(task)) && (task.at_the_end || !control_.out_of_time());
}

std::size_t Tasks::first_due() const {
    return std::size_t(std::ranges::find_if(rows_, [&](const Row& row) { return is_due(row); }) - rows_.begin());
}

bool Tasks::run_next() {
    const std::size_t due = first_due();
    if (due == rows_.size()) return false;
    auto& [task, done, state, seconds] = rows_[due];
    if (const auto took = task.run()) {
        done = made_;
        state.pending &= waits_;  // of a checkpoint within a round, another one at its end
        seconds.all += seconds.last = *took;
        if (task.at_the_end && !task.saves) state.seconds = *took;
    }
    return true;
}

void Tasks::save_took(double seconds) {
    for (Row& row : rows_)
        if (row.task.saves) row.state.seconds = seconds;
}

// A checkpoint that is resumed has not to be saved again.
TaskStates Tasks::states() const {
    TaskStates states;
    for (const auto& [task, done, state, seconds] : rows_)
        states[task.name] = {.pending = state.pending && !task.saves, .seconds = state.seconds};
    return states;
}

Tasks::Evaluation Tasks::evaluation(std::int64_t made, std::int64_t total) const {
    Evaluation all;
    double longest = 0;
    for (const auto& [task, done, state, seconds] : rows_) {
        if (task.saves) continue;
        const double left = seconds.last * double(times_due(task.every, made, total));
        all.used += seconds.all;
        all.left += left;
        if (seconds.all + left <= longest) continue;
        longest = seconds.all + left;
        all.longest = &task;
    }
    return all;
}

double Tasks::seconds_left(std::int64_t made, std::int64_t total) const {
    double left = evaluation(made, total).left;
    // Training waits only for the copy of a checkpoint, but the end of the run for all of it.
    for (const auto& [task, done, state, seconds] : rows_)
        if (task.saves)
            left += seconds.last * double(std::max<std::int64_t>(times_due(task.every, made, total) - 1, 0)) +
                    state.seconds;
    return left;
}

std::int64_t Tasks::steps_within(double seconds, double step_seconds) const {
    for (const Row& row : rows_)
        if (row.task.every > 0) step_seconds += row.seconds.last / double(row.task.every);
    return std::int64_t(seconds / step_seconds);
}

}  // namespace llmc
