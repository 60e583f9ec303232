// periodic.h - what a run does after every so many steps, and once more where it ends
#pragma once
#include <cstdint>

namespace llmc {

// When a validation, samples or a checkpoint are due. The run may be stopped before they are done, and be gone on with.
class Periodic {
public:
    enum class First { before_steps, after_a_step };

    // After every `every`-th step and the last of `steps`; 0: never.
    Periodic(std::int64_t every, std::int64_t steps, First first) : every_(every), steps_(steps), first_(first) {}

    // Training is at this step: so many have been made. Asked again for the same one, nothing changes.
    void reach(std::int64_t step) {
        if (step == step_) return;
        step_ = step;
        may_come_ = every_ > 0 && (step > 0 || first_ == First::before_steps);
        owed_ = may_come_ && (step == steps_ || step % every_ == 0);
    }
    // The run that is gone on with was at this step, and has left it `owed` or not: nobody owes what is never due. What
    // it did where it was stopped does not come a second time.
    void restore(std::int64_t step, bool owed) { step_ = step, owed_ = owed && every_ > 0, may_come_ = false; }

    bool due(bool run_ends) const { return owed_ || (run_ends && may_come_); }
    void done() { owed_ = may_come_ = false; }
    // Whoever goes on from here has it to do, even if this run has not.
    bool owed() const { return owed_; }

private:
    std::int64_t every_, steps_;
    First first_;
    std::int64_t step_ = -1;
    bool owed_ = false, may_come_ = false;
};

}  // namespace llmc
