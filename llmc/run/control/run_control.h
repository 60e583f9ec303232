// run_control.h - whether a run ends after a step: signals, failures and its time; the same on all ranks
#pragma once

#include "llmc/comm/communicator.h"
#include "llmc/run/checkpoint/trainer_state.h"

namespace llmc {

// What one rank asks of all ranks.
struct RankRequests {
    int signal = 0;        // received, ends the run; 0: none
    bool save = false;     // a checkpoint now (SIGUSR2)
    bool failed = false;   // this rank cannot continue
    double stopped = 0;    // seconds in which this process was stopped
    TaskStates tasks{};    // of Tasks::states(): a run whose length is a time ends early enough for them
};

// What a run does at its end may take longer than it has: then it trains for half of the time after its start. The
// share of its training time that is used, from 0 to 1, in a run of `all` seconds.
double share_of_time(const RunSeconds& seconds, const TaskStates& tasks, double all);

class RunControl {
public:
    struct Settings {
        double max_minutes = 0, checkpoint_minutes = 0;  // 0: no limit
        bool timed = false;  // max_minutes are the length of the whole run, without a number of steps
    };
    // Minutes count from here. The communicator must outlive it.
    RunControl(const Settings& settings, Communicator& communicator);
    // Before the first reach() of a resumed run.
    void restore(const TrainerState& state);

    // Collective, once per step: combines the requests of all ranks. failed() and share() have the result on return,
    // all else from the next reach() on.
    void agree(const RankRequests& mine);
    // Between two steps, or after the last one. A second call in between keeps what has been done.
    void reach(bool last);

    // ---- after reach()
    bool ends() const { return ends_; }  // no further step
    bool failed() const { return failed_; }
    int signal() const { return signal_; }
    bool intact() const { return !failed_ && signal_ == 0; }
    bool out_of_time() const { return out_of_time_; }
    // Tasks that take as long as last time would leave no time for training.
    bool hurries() const { return hurries_; }
    bool save_requested() const { return save_requested_; }
    bool checkpoint_by_time() const { return save_by_time_; }

    // End the run after this step. Call them on all ranks.
    void fail() { ends_ = failed_ = true; }
    void run_out_of_time() { ends_ = out_of_time_ = true; }
    void stop_early() { ends_ = stops_early_ = true; }
    void interrupt(int signal) { ends_ = true, signal_ = signal; }
    // The checkpoint of this step has begun. --checkpoint-minutes count from here.
    void checkpoint_begun();
    void training_begins() { last_.before_training = last_.used + seconds(); }

    // The share of the time that was used at the last agree(), from 0 to 1, never decreasing, the same on all ranks: of
    // max_minutes since construction, or share_of_time() of a timed run. 1: the run ends.
    double share() const { return share_; }
    double seconds() const;    // since construction
    double stopped() const { return stopped_; }  // seconds of the rank that was stopped longest, at the last agree()
    RunSeconds run_seconds() const;  // for the checkpoint
    double seconds_left() const;     // of max_minutes, with the end of the run
    bool is_time_up_here() const { return share_after(0) >= 1; }  // by the clock of this rank, not of all
    // Why the run ended, for the log: "all steps completed", "out of time (--max-minutes)", "interrupted", "error",
    // "no lower validation loss (--stop-after)".
    const char* reason() const;

private:
    double share_after(double more) const;  // seconds from now, by the clock of this rank

    Settings settings_;
    Communicator& communicator_;
    double began_, last_save_;             // seconds_now()
    RunSeconds last_{};                    // `used`: before construction
    TaskStates tasks_{};                   // at the last agree() or restore()
    double share_ = 0, stopped_ = 0;
    int signal_ = 0;
    bool ends_ = false, failed_ = false, out_of_time_ = false, stops_early_ = false, hurries_ = false;
    bool save_requested_ = false, save_by_time_ = false;
};

}  // namespace llmc
