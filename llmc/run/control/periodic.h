// periodic.h - a task of a run that is due every N steps, and once more when the run ends
#pragma once
#include <cstdint>
#include <optional>

namespace llmc {

// When validation, samples or a checkpoint are due. If the run stops before a task is done, the task stays pending for
// the resumed run.
class Periodic {
public:
    enum class First { before_steps, after_a_step };

    // Due after every `every`-th step and after the last of `steps`, if that is known; every = 0: disabled.
    Periodic(std::int64_t every, std::optional<std::int64_t> steps, First first)
        : every_(every), steps_(steps), first_(first) {}

    // `step` steps have been made. A second call with the same step changes nothing.
    void reach(std::int64_t step) {
        if (step == step_) return;
        step_ = step;
        may_run_ = every_ > 0 && (step > 0 || first_ == First::before_steps);
        pending_ = may_run_ && (step == steps_ || step % every_ == 0);
    }
    // The run resumes at this step, with the task pending or not; disabled tasks are never pending. A task that was
    // done before the stop does not run again.
    void restore(std::int64_t step, bool pending) { step_ = step, pending_ = pending && every_ > 0, may_run_ = false; }

    bool due(bool run_ends) const { return pending_ || (run_ends && may_run_); }
    void done() { pending_ = may_run_ = false; }
    // A run that resumes from this step has to do it first.
    bool pending() const { return pending_; }

private:
    std::int64_t every_;
    std::optional<std::int64_t> steps_;
    First first_;
    std::int64_t step_ = -1;
    bool pending_ = false, may_run_ = false;
};

}  // namespace llmc
