// step_log.cpp - from the results of a finished step to its report
#include "llmc/run/loop/step_log.h"

#include <cmath>
#include <string_view>

namespace llmc {

StepLog::StepLog(Loop& loop, OptimizerStep& optimizer)
    : loop_(loop),
      optimizer_(optimizer),
      throughput_(flops_per_token(loop.plan.table, loop.plan.setup.shape.seq_len, loop.plan.pair_share()),
                  loop.plan.peak_flops),
      noise_(loop.plan.settings.noise.beta),
      last_seconds_(seconds_now()) {
    const TrainerState* const before = loop.resumed();
    if (before && !before->noise.empty())
        noise_.restore(before->noise[0], loop.plan.steps.at(std::max<std::int64_t>(before->step, 1)).relative);
}

void StepLog::enqueued(const Report::Step& step) {
    report(1);
    pending_ = {step, began_.seconds};
    pending_->step.phase = optimizer_.optimizer().phase();
    pending_->step.bytes_sent = loop_.context.world->bytes_sent() - began_.bytes_sent;
    if (optimizer_.scalars_ready()) report(0, seconds_now());
}

void StepLog::report(int steps_back, double ended) {
    if (!pending_) return;
    auto [step, began] = *std::exchange(pending_, {});
    const StepSize& size = step.size;
    step.scalars = optimizer_.scalars(steps_back);
    if (ended == 0) ended = std::max({optimizer_.ended(steps_back), last_seconds_, began});
    // Steps overlap on a GPU: a step is timed from the end of the one before, unless something else ran in between.
    const double seconds = ended - std::max(last_seconds_, began);
    step.speed = throughput_.read(seconds, size.positions, size.workers * step.scalars.valid_targets);
    if (const auto times = loop_.context.world->times()) {
        step.communication = CommTimes{times->busy - times_.busy, times->waited - times_.waited};
        times_ = *times;
    }
    if (const StepPlan& steps = loop_.plan.steps; steps.total)
        step.seconds_left = throughput_.seconds_left(steps.positions_left(size.number));
    if (step.seconds_left) *step.seconds_left += step.seconds_of_tasks;
    if (step.progress)
        step.seconds_left = std::min(step.seconds_left.value_or(INFINITY), step.progress->seconds_left);
    step.parts.tasks = std::max(began - last_seconds_, 0.0);
    step.cpu_share = share_.latest();
    last_seconds_ = ended;
    if (loop_.plan.measures_noise()) {
        if (size.changes) noise_.restart(size.relative);
        if (step.scalars.skip == kernels::kNoSkip)
            noise_.add(optimizer_.totals(steps_back), size.positions_of_worker());
        step.noise = noise_so_far(step);
    }
    follow_phase(step);
    if (const auto round = optimizer_.round_after(size.number)) {
        loop_.report->outer(*round);
        loop_.health.rounds_skipped(round->steps, round->skipped_in_a_row);
    }
    if (const auto warning = loop_.health.step(size.number, step.scalars)) loop_.report->warn(size.number, *warning);
    const auto each = [&](double all) { return all / double(size.positions); };
    const double share = std::fmin(step.cpu_share.value_or(1), 1);  // 1, if it is NaN
    if (const auto warning = slow_.warning({.step = each(seconds), .data = each(step.parts.data),
                                            .ranks = each(step.waited()), .share = share}, seconds))
        loop_.report->warn(size.number, {"slow", *warning});
}

void StepLog::follow_phase(const Report::Step& step) {
    const bool begins = phase_ != std::string_view(step.phase), from_another = begins && *phase_;
    phase_ = step.phase;
    if (from_another) {
        loop_.report->phase_begins(step.size.number - 1, step.phase, optimizer_.optimizer().phase_begins());
        slow_ = {};  // steps of another phase may take longer
        ms_before_ = std::move(phase_ms_);
    }
    loop_.report->step(step);
    if (begins) {
        phase_ms_.clear();  // the first step also initializes, so it is not timed
        return;
    }
    if (!*phase_) return;
    // Of a phase that may be followed by another keep the last steps; of the phase after it keep the first ones.
    if (ms_before_.empty() && phase_ms_.size() == kPhaseSteps) phase_ms_.erase(phase_ms_.begin());
    if (phase_ms_.size() < kPhaseSteps) phase_ms_.push_back(step.speed.ms);
    if (!ms_before_.empty() && phase_ms_.size() == kPhaseSteps) compare_phases(step.size.number);
}

void StepLog::compare_phases(std::int64_t steps) {
    const auto median = [](std::vector<double>& values) {
        std::ranges::nth_element(values, values.begin() + std::ptrdiff_t(values.size() / 2));
        return values[values.size() / 2];
    };
    loop_.report->phase_speed(steps, phase_, median(ms_before_), median(phase_ms_), phase_ms_.size());
    ms_before_.clear();
}

Report::Noise StepLog::noise_so_far(const Report::Step& step) const {
    // Of the worker, as the valid targets.
    const double sequences = double(step.size.positions_of_worker()) / double(loop_.plan.steps.batch().seq_len);
    return {.estimate = noise_.scale().estimate(),
            .sequences_per_token = sequences / double(step.scalars.valid_targets)};
}

}  // namespace llmc
