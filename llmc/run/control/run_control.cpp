// run_control.cpp - the requests of all ranks, and what follows from them
#include "llmc/run/control/run_control.h"

#include <algorithm>
#include <array>
#include <utility>

#include "llmc/base/clock.h"

namespace llmc {
namespace {

constexpr double kWholeShare = 0x1p52;  // shares are sent as whole numbers up to this

bool minutes_passed(double minutes, double since) { return minutes > 0 && seconds_now() - since >= minutes * 60; }

double seconds_of(const TaskStates& tasks, bool checkpoint) {
    double all = 0;
    for (const auto& [name, task] : tasks)
        if (checkpoint || name != kCheckpointTask) all += task.seconds;
    return all;
}

}  // namespace

double share_of_time(const RunSeconds& seconds, const TaskStates& tasks, double all) {
    const double trained = seconds.used - seconds.before_training, left = all - seconds.before_training;
    const double training = std::max(left - seconds_of(tasks, /*checkpoint=*/true), left / 2);
    return trained < training ? std::max(trained / training, 0.0) : 1;
}

RunControl::RunControl(const Settings& settings, Communicator& communicator)
    : settings_(settings),
      communicator_(communicator),
      began_(seconds_now()),
      last_save_(began_) {}

void RunControl::restore(const TrainerState& state) {
    last_ = state.seconds;
    tasks_ = state.tasks;
}

void RunControl::agree(const RankRequests& mine) {
    enum { kSignal, kShare, kFailed, kHurries, kSaveByTime, kSave, kStopped };
    tasks_ = mine.tasks;
    std::array<std::int64_t, 7> requests{
        mine.signal, std::int64_t(share_after(0) * kWholeShare), mine.failed,
        settings_.timed && share_after(seconds_of(tasks_, /*checkpoint=*/false)) >= 1,
        minutes_passed(settings_.checkpoint_minutes, last_save_), mine.save, std::int64_t(mine.stopped)};
    // A GPU does not wait for it: the micro-batches of the step are still queued. MPI takes 5 us for 2 ranks on cores
    // of their own, 160 us for 8 ranks on 2 cores that other programs use too.
    communicator_.host_reduce(requests, HostReduction::max);
    signal_ = int(requests[kSignal]);
    share_ = std::max(share_, double(requests[kShare]) / kWholeShare);
    out_of_time_ = share_ >= 1;
    failed_ = requests[kFailed] != 0;
    hurries_ = requests[kHurries] != 0;
    save_by_time_ = requests[kSaveByTime] != 0;
    save_requested_ = requests[kSave] != 0;
    stopped_ = double(requests[kStopped]);
}

void RunControl::reach(bool last) {
    ends_ = !intact() || out_of_time_ || stops_early_ || (!settings_.timed && last);
}

void RunControl::checkpoint_begun() { last_save_ = seconds_now(); }

double RunControl::seconds() const { return seconds_now() - began_; }

double RunControl::share_after(double more) const {
    const double all = settings_.max_minutes * 60;
    if (all == 0) return 0;
    if (!settings_.timed) return std::min((seconds() + more) / all, 1.0);
    RunSeconds then = run_seconds();
    then.used += more;
    return share_of_time(then, tasks_, all);
}

// A run that has ended has used all its time, also if its end took less than expected.
RunSeconds RunControl::run_seconds() const {
    RunSeconds now = last_;
    now.used += seconds();
    if (settings_.timed && out_of_time_) now.used = std::max(now.used, settings_.max_minutes * 60);
    return now;
}

double RunControl::seconds_left() const {
    const double before = settings_.timed ? last_.used : 0;
    return std::max(settings_.max_minutes * 60 - before - seconds(), 0.0);
}

const char* RunControl::reason() const {
    return failed_ ? "error" : signal_ != 0 ? "interrupted"
           : out_of_time_ ? "out of time (--max-minutes)"
           : stops_early_ ? "no lower validation loss (--stop-after)" : "all steps completed";
}

}  // namespace llmc
