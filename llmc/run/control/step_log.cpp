// step_log.cpp - from the results of a finished step to its report
#include "llmc/run/control/step_log.h"

#include <cmath>
#include <string_view>

namespace llmc {

void StepLog::enqueued(const Report::Step& step) {
    if (pending_ && !pending_->ended) {
        end_of(*pending_, 1);
        if (may_contain_stop(*pending_)) before_ = std::exchange(pending_, {});
    }
    report(pending_, 1);
    pending_ = {step, began_.seconds};
    pending_->step.phase = loop_.optimizer.optimizer().phase();
    pending_->step.bytes_sent = loop_.ranks.bytes_sent() - began_.bytes_sent;
    if (before_ || !loop_.optimizer.scalars_ready()) return;
    pending_->ended = run_clock();
    if (!may_contain_stop(*pending_)) report(pending_, 0);
}

void StepLog::leave_out(double seconds) {
    Pending* const waits = before_ ? &*before_ : pending_ && pending_->ended ? &*pending_ : nullptr;
    const double current = run_clock() - std::max(waits ? *waits->ended : last_seconds_, began_.seconds);
    if (waits && waits->seconds(last_seconds_) > current) {
        const double before = std::min(seconds, waits->seconds(last_seconds_));
        waits->stopped += before;
        seconds -= before;
    }
    left_out_ += std::min(seconds, current);
    report(before_, 1);
}

void StepLog::flush() {
    report(before_, 1);
    report(pending_, 0);
}

// Steps overlap on a GPU: a step is timed from the end of the one before, unless something else ran in between. A stop
// after its end is subtracted, too.
void StepLog::end_of(Pending& step, int steps_back) const {
    if (!step.ended) step.ended = std::max({run_clock(loop_.optimizer.ended(steps_back)), last_seconds_, step.began});
}

void StepLog::report(std::optional<Pending>& pending, int steps_back) {
    if (!pending) return;
    Report::Step step = pending->step;
    step.scalars = loop_.optimizer.scalars(steps_back);
    end_of(*pending, steps_back);
    const double stopped = loop_.interrupt.stopped_seconds() + left_out_;
    double seconds = pending->seconds(last_seconds_);
    // When a stop began is known to within a step: a step with one takes at least as long as the one before.
    if (std::exchange(stopped_before_, stopped) != stopped || pending->stopped > 0)
        seconds = std::max(seconds, step_seconds_);
    step_seconds_ = seconds;
    step.speed = throughput_.read(seconds, step.positions, step.workers * step.scalars.valid_targets);
    if (const auto times = loop_.ranks.times()) {  // which count stops of other ranks
        step.communication = CommTimes{std::min(times->busy - times_.busy, seconds),
                                       std::min(times->waited - times_.waited, seconds)};
        times_ = *times;
    }
    if (loop_.steps.total) step.seconds_left = throughput_.seconds_left(loop_.steps.positions_left(step.step + 1));
    if (step.seconds_left) *step.seconds_left += step.seconds_of_tasks;
    if (step.progress)
        step.seconds_left = std::min(step.seconds_left.value_or(INFINITY), step.progress->seconds_left);
    step.parts.tasks = std::max(pending->began - last_seconds_, 0.0);
    step.cpu_share = share_.latest();
    last_seconds_ = *pending->ended;
    pending.reset();
    if (measures_noise_) {
        const StepSize size = loop_.steps.at(step.step);
        if (size.changes) noise_.restart(size.relative);
        if (step.scalars.skip == kernels::kNoSkip)
            noise_.add(loop_.optimizer.totals(steps_back), step.positions / step.workers);
        step.noise = noise_so_far(step);
    }
    follow_phase(step);
    if (const auto round = loop_.optimizer.round_after(step.step + 1)) {
        loop_.report.outer(*round);
        loop_.health.rounds_skipped(round->steps, round->skipped_in_a_row);
    }
    if (const auto warning = loop_.health.step(step.step + 1, step.scalars)) loop_.report.warn(step.step + 1, *warning);
    const auto each = [&](double all) { return all / double(step.positions); };
    const double share = std::fmin(step.cpu_share.value_or(1), 1);  // 1, if it is NaN
    if (const auto warning = slow_.warning({.step = each(seconds), .data = each(step.parts.data),
                                            .ranks = each(step.waited()), .share = share}, seconds))
        loop_.report.warn(step.step + 1, {"slow", *warning});
}

void StepLog::follow_phase(const Report::Step& step) {
    const bool begins = phase_ != std::string_view(step.phase), from_another = begins && *phase_;
    phase_ = step.phase;
    if (from_another) {
        loop_.report.phase_begins(step.step, step.phase, loop_.optimizer.optimizer().phase_begins());
        slow_ = {};  // steps of another phase may take longer
        ms_before_ = std::move(phase_ms_);
    }
    loop_.report.step(step);
    if (begins) {
        phase_ms_.clear();  // the first step also initializes, so it is not timed
        return;
    }
    if (!*phase_) return;
    // Of a phase that may be followed by another keep the last steps; of the phase after it keep the first ones.
    if (ms_before_.empty() && phase_ms_.size() == kPhaseSteps) phase_ms_.erase(phase_ms_.begin());
    if (phase_ms_.size() < kPhaseSteps) phase_ms_.push_back(step.speed.ms);
    if (!ms_before_.empty() && phase_ms_.size() == kPhaseSteps) compare_phases(step.step + 1);
}

void StepLog::compare_phases(std::int64_t steps) {
    const auto median = [](std::vector<double>& values) {
        std::ranges::nth_element(values, values.begin() + std::ptrdiff_t(values.size() / 2));
        return values[values.size() / 2];
    };
    loop_.report.phase_speed(steps, phase_, median(ms_before_), median(phase_ms_), phase_ms_.size());
    ms_before_.clear();
}

Report::Noise StepLog::noise_so_far(const Report::Step& step) const {
    // Of the worker, as the valid targets.
    const double sequences = double(step.positions) / (step.workers * double(loop_.steps.batch().seq_len));
    return {.estimate = noise_.scale().estimate(),
            .sequences_per_token = sequences / double(step.scalars.valid_targets)};
}

}  // namespace llmc
