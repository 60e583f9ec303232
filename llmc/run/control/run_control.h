// run_control.h - whether a run ends after a step, and which tasks are due before the next one; the same on all ranks
#pragma once
#include <optional>

#include "llmc/comm/communicator.h"
#include "llmc/run/checkpoint/trainer_state.h"
#include "llmc/run/control/periodic.h"

namespace llmc {

// What one rank asks of all ranks.
struct RankRequests {
    int signal = 0;        // received, ends the run; 0: none
    bool save = false;     // a checkpoint now (SIGUSR2)
    bool failed = false;   // this rank cannot continue
    double stopped = 0;    // seconds, since the construction of RunControl (Interrupt::stopped_seconds())
};

class RunControl {
public:
    struct Settings {
        std::optional<std::int64_t> total_steps{};
        std::int64_t val_every = 0, hellaswag_every = 0, sample_every = 0, checkpoint_every = 0;  // steps; 0: disabled
        double max_minutes = 0, checkpoint_minutes = 0;                                           // 0: no limit
        bool timed = false;     // max_minutes are the length of the whole run, without total_steps
        std::int64_t stop_after = 0;  // validations without a lower loss; 0: no limit
        bool keep_best = false;       // the lowest validation loss makes a checkpoint due
        bool saves = false;     // there is a folder for checkpoints
        bool branches = false;  // the run resumes from a checkpoint in another folder
    };
    // Minutes count from here, without the time in which a rank is stopped. The communicator must outlive it.
    RunControl(const Settings& settings, Communicator& communicator);
    // Before the first reach() of a resumed run. The checkpoint it resumes from is not written again, unless the run
    // branches into another folder.
    void restore(const TrainerState& state);

    // Collective, once per step: combines the requests of all ranks. failed() and share() have the result on return,
    // all else from the next reach() on.
    void agree(const RankRequests& mine);
    // Collective: seconds() do not count what the rank that was stopped longest since the last call was; agree() does
    // it, too. `mine`: as in RankRequests.
    void leave_out_stops(double mine);
    // `step` steps have been made. A second call with the same step keeps what has been done.
    void reach(std::int64_t step);

    // ---- after reach()
    bool ends() const { return ends_; }  // no further step
    bool failed() const { return failed_; }
    int signal() const { return signal_; }
    bool save_requested() const { return save_requested_; }
    // A timed run makes validations and samples that would take the time of the last ones only when it ends.
    bool validation_due() const { return intact() && validation_.due(ends_) && (ends_ || !hurries_); }
    // Not after the time limit, as it may take long: then it stays pending, if it was due.
    bool hellaswag_due() const { return intact() && !out_of_time_ && hellaswag_.due(ends_); }
    bool samples_due() const { return intact() && samples_.due(ends_) && (ends_ || !hurries_); }
    // Also when the run ends; never twice for the same step, and not if the run failed before its first step.
    bool checkpoint_due() const;
    // Some task comes before the next step, or the run ends: wait for the last step's report first.
    bool pauses() const { return ends_ || save_due_ || validation_due() || hellaswag_due() || samples_due(); }

    // End the run after this step. Call them on all ranks.
    void fail() { ends_ = failed_ = true; }
    void run_out_of_time() { ends_ = out_of_time_ = true; }
    // Each validation, once it is reported.
    void after_validation(const HealthState& health);
    // The task is done, or `signal` (not 0) ended it early: then it stays pending, and the run ends.
    void end_validation(int signal) { end(validation_, signal); }
    void end_hellaswag(int signal) { end(hellaswag_, signal); }
    void end_samples(int signal) { end(samples_, signal); }
    // The checkpoint of this step has begun. --checkpoint-minutes count from here.
    void checkpoint_begun();
    // Seconds that the last one took: a timed run ends early enough for another one.
    void validation_took(double seconds);
    void samples_took(double seconds) { last_.samples = seconds; }
    void checkpoint_took(double seconds) { last_.checkpoint = seconds; }
    // What a run that resumes from this step has to do first.
    bool validation_pending() const { return validation_.pending(); }
    bool hellaswag_pending() const { return hellaswag_.pending(); }
    bool samples_pending() const { return samples_.pending(); }

    // The share of the time that was used at the last agree(), from 0 to 1, never decreasing, the same on all ranks: of
    // max_minutes since construction, or RunSeconds::share() of a timed run. 1: the run ends.
    double share() const { return share_; }
    double seconds() const;    // since construction, without stops
    double stopped() const { return stopped_; }  // seconds left out so far, the same on all ranks
    double stopped_elsewhere() const { return stopped_elsewhere_; }  // of these, those in which this rank was not
    RunSeconds run_seconds() const;  // for the checkpoint
    double seconds_left() const;     // of max_minutes, with the end of the run
    bool is_time_up_here() const { return share_after(0) >= 1; }  // by the clock of this rank, not of all
    // Why the run ended, for the log: "all steps completed", "out of time (--max-minutes)", "interrupted", "error",
    // "no lower validation loss (--stop-after)".
    const char* reason() const;

private:
    double share_after(double more) const;  // seconds from now, by the clock of this rank
    bool ends_early(const HealthState& health) const {
        return settings_.stop_after > 0 && health.validations_since_best >= settings_.stop_after;
    }
    std::int64_t microseconds_stopped(double mine) const;  // since the last agreement
    bool leave_out(std::int64_t longest, double mine);     // microseconds of any rank; whether there are any
    bool intact() const { return !failed_ && signal_ == 0; }
    void end(Periodic& periodic, int signal);

    Settings settings_;
    Communicator& communicator_;
    Periodic validation_, hellaswag_, samples_, checkpoint_;
    double began_, last_save_;             // seconds_now()
    RunSeconds last_{};                    // `used`: before construction
    double agreed_[2], left_out_ = 0;      // seconds_now() of the last two agreements; what the last one left out
    double share_ = 0;
    double stopped_ = 0, stopped_elsewhere_ = 0;  // seconds agreed
    double stopped_here_ = 0;                     // of this rank, at the last agreement
    std::int64_t step_ = -1, saved_ = -1;  // the last one reached; that of the last checkpoint
    int signal_ = 0;
    bool ends_ = false, failed_ = false, out_of_time_ = false, ends_early_ = false, hurries_ = false;
    bool save_requested_ = false, save_by_time_ = false, save_due_ = false;
};

}  // namespace llmc
