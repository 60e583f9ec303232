// run_control.cpp - the requests of all ranks, and what follows from them
#include "llmc/run/control/run_control.h"

#include <algorithm>

#include "llmc/base/clock.h"

namespace llmc {
namespace {

constexpr double kMicroseconds = 1e6;   // stops are sent in whole ones
constexpr double kWholeShare = 0x1p52;  // shares are sent as whole numbers up to this

bool minutes_passed(double minutes, double since) { return minutes > 0 && seconds_now() - since >= minutes * 60; }

}  // namespace

RunControl::RunControl(const Settings& settings, Communicator& communicator)
    : settings_(settings),
      communicator_(communicator),
      validation_(settings.val_every, settings.total_steps, Periodic::First::before_steps),
      hellaswag_(settings.hellaswag_every, settings.total_steps, Periodic::First::after_a_step),
      samples_(settings.sample_every, settings.total_steps, Periodic::First::after_a_step),
      checkpoint_(settings.saves ? settings.checkpoint_every : 0, settings.total_steps, Periodic::First::after_a_step),
      began_(seconds_now()),
      last_save_(began_) {}

void RunControl::restore(const TrainerState& state) {
    validation_.restore(state.step, !state.validated);
    hellaswag_.restore(state.step, !state.scored);
    samples_.restore(state.step, !state.sampled);
    checkpoint_.restore(state.step, false);
    if (!settings_.branches) saved_ = state.step;
    last_ = state.seconds;
    ends_early_ = ends_early(state.health);
}

void RunControl::agree(const RankRequests& mine) {
    enum { kSignal, kShare, kFailed, kHurries, kSaveByTime, kSave, kStopped };
    std::int64_t requests[] = {mine.signal, std::int64_t(share_after(0) * kWholeShare), mine.failed,
                               settings_.timed && share_after(last_.validation + last_.samples) >= 1,
                               minutes_passed(settings_.checkpoint_minutes, last_save_), mine.save,
                               std::int64_t((mine.stopped - stopped_here_) * kMicroseconds)};
    // A GPU does not wait for it: the micro-batches of the step are still queued. MPI takes 5 us for 2 ranks on cores
    // of their own, 160 us for 8 ranks on 2 cores that other programs use too.
    communicator_.host_reduce(requests, HostReduction::max);
    if (left_out(requests[kStopped], mine.stopped)) return agree(mine);  // the shares counted the stop
    signal_ = int(requests[kSignal]);
    share_ = double(requests[kShare]) / kWholeShare;
    out_of_time_ = share_ >= 1;
    failed_ = requests[kFailed] != 0;
    hurries_ = requests[kHurries] != 0;
    save_by_time_ = requests[kSaveByTime] != 0;
    save_requested_ = requests[kSave] != 0;
}

void RunControl::leave_out_stops(double mine) {
    left_out(communicator_.host_reduce(std::int64_t((mine - stopped_here_) * kMicroseconds), HostReduction::max), mine);
}

bool RunControl::left_out(std::int64_t microseconds, double mine) {
    stopped_here_ = mine;
    if (microseconds == 0) return false;
    stopped_ += double(microseconds) / kMicroseconds;
    began_ += double(microseconds) / kMicroseconds;
    return true;
}

void RunControl::reach(std::int64_t step) {
    step_ = step;
    ends_ = failed_ || signal_ != 0 || out_of_time_ || ends_early_ ||
            (!settings_.timed && step == settings_.total_steps);
    for (Periodic* const each : {&validation_, &hellaswag_, &samples_, &checkpoint_}) each->reach(step);
    save_due_ = save_by_time_ || save_requested_ || checkpoint_.due(ends_);
}

bool RunControl::checkpoint_due() const {
    return settings_.saves && step_ != saved_ && (failed_ ? step_ > 0 : ends_ || save_due_);
}

void RunControl::checkpoint_begun() {
    saved_ = step_;
    last_save_ = seconds_now();
}

void RunControl::end(Periodic& periodic, int signal) {
    signal_ = signal;
    if (signal == 0) periodic.done();
    else ends_ = true;
}

void RunControl::after_validation(const HealthState& health) {
    if (settings_.keep_best && health.best_validation_after == step_) save_due_ = true;
    if (ends_early(health)) ends_ = ends_early_ = true;
}

void RunControl::validation_took(double seconds) {
    last_.validation = seconds;
    if (step_ == 0) last_.before_training = last_.used + this->seconds();
}

double RunControl::seconds() const { return seconds_now() - began_; }

double RunControl::share_after(double more) const {
    const double all = settings_.max_minutes * 60;
    if (all == 0) return 0;
    if (!settings_.timed) return std::min((seconds() + more) / all, 1.0);
    RunSeconds then = run_seconds();
    then.used += more;
    return then.share(all);
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
           : ends_early_ ? "no lower validation loss (--stop-after)" : "all steps completed";
}

}  // namespace llmc
