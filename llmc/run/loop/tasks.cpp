// tasks.cpp - which task is due, and how long those to come take
#include "llmc/run/loop/tasks.h"

#include <utility>

namespace llmc {
namespace {

// How often a task is due after `made` steps or more, of `total`.
std::int64_t times_due(std::int64_t every, std::int64_t made, std::int64_t total) {
    if (every == 0 || made > total) return 0;
    return total / every - (std::max<std::int64_t>(made, 1) - 1) / every + (total % every != 0);
}

}  // namespace

Tasks::Tasks(std::vector<Task> tasks, const Checkpoints& checkpoints, const RunControl& control)
    : checkpoints_(checkpoints), control_(control) {
    for (Task& task : tasks) rows_.push_back({.task = std::move(task)});
}

void Tasks::restore(const TrainerState& state) {
    made_ = state.step;
    if (!checkpoints_.branches) saved_ = state.step;
    for (Row& row : rows_)
        if (const auto found = state.tasks.find(row.task.name); found != state.tasks.end()) {
            row.state = found->second;
            row.state.pending &= row.task.every > 0;
            row.seconds.last = row.state.seconds;
        }
    if (const auto found = state.tasks.find(kCheckpointTask); found != state.tasks.end())
        checkpoint_seconds_ = found->second.seconds;
}

void Tasks::reach(std::int64_t made, bool last, bool waits) {
    const auto falls_on = [&](std::int64_t every) { return every > 0 && (last || made % every == 0); };
    if (made != made_) {
        interval_ends_ = (waits_ && interval_ends_) || (made > 0 && falls_on(checkpoints_.every));
        for (auto& [task, may_run, state, seconds] : rows_) {
            may_run = task.every > 0 && (made > 0 || task.before_steps);
            state.pending = (waits_ && state.pending) || (may_run && falls_on(task.every));
        }
    }
    made_ = made;
    waits_ = waits;
    save_due_ = (!waits && (interval_ends_ || control_.checkpoint_by_time())) || control_.save_requested();
}

std::size_t Tasks::first_due() const {
    if (!control_.intact() || waits_) return rows_.size();
    const auto due = [&](const Row& row) {
        const auto& [task, may_run, state, seconds] = row;
        if (!control_.ends()) return state.pending && !(task.at_the_end && control_.hurries());
        return (state.pending || may_run) && (task.at_the_end || !control_.out_of_time());
    };
    return std::size_t(std::ranges::find_if(rows_, due) - rows_.begin());
}

bool Tasks::run_next() {
    const std::size_t due = first_due();
    if (due == rows_.size()) return false;
    auto& [task, may_run, state, seconds] = rows_[due];
    if (const auto took = task.run()) {
        may_run = state.pending = false;
        seconds.all += seconds.last = *took;
        if (task.at_the_end) state.seconds = *took;
    }
    return true;
}

bool Tasks::checkpoint_due() const {
    return checkpoints_.saves && made_ != saved_ &&
           (control_.failed() ? made_ > 0 : control_.ends() || save_due_);
}

TaskStates Tasks::states() const {
    TaskStates states{{kCheckpointTask, {.seconds = checkpoint_seconds_}}};
    for (const Row& row : rows_) states[row.task.name] = row.state;
    return states;
}

Tasks::Evaluation Tasks::evaluation(std::int64_t made, std::int64_t total) const {
    Evaluation all;
    double longest = 0;
    for (const auto& [task, may_run, state, seconds] : rows_) {
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
    const double evaluation = this->evaluation(made, total).left;
    if (!checkpoints_.saves) return evaluation;
    // Training waits only for the copy of a checkpoint, but the end of the run for all of it.
    const std::int64_t before_the_end = std::max<std::int64_t>(times_due(checkpoints_.every, made, total) - 1, 0);
    return evaluation + checkpoint_waited_ * double(before_the_end) + checkpoint_seconds_;
}

std::int64_t Tasks::steps_within(double seconds, double step_seconds) const {
    for (const Row& row : rows_)
        if (row.task.every > 0) step_seconds += row.seconds.last / double(row.task.every);
    return std::int64_t(seconds / step_seconds);
}

}  // namespace llmc
