// run_control.h - what comes between two updates: whether the run ends there, and what is due, the same on all ranks
#pragma once
#include "llmc/comm/communicator.h"
#include "llmc/run/periodic.h"
#include "llmc/run/trainer_state.h"

namespace llmc {

// What one rank has to tell the others.
struct Wishes {
    int signal = 0;           // that ends the run; 0: none
    bool save_asked = false;  // by SIGUSR2
    bool failed = false;      // it cannot go on; what has been trained so far is sound
    bool writing = false;     // a checkpoint
};

class RunControl {
public:
    struct Settings {
        std::int64_t total_steps = 0;
        std::int64_t val_every = 0, hellaswag_every = 0, sample_every = 0, checkpoint_every = 0;  // steps; 0: never
        double max_minutes = 0, checkpoint_minutes = 0;                                           // 0: no bound
        bool saves = false;  // there is a folder for checkpoints
    };
    // From now on minutes count. The communicator must outlive it.
    RunControl(const Settings& settings, Communicator& communicator);
    // Before the first reach() of a run that goes on from a checkpoint, which it does not write again.
    void restore(const TrainerState& state);

    // Training is at this step: so many have been made. Every rank calls it, and what one of them wishes, all do. Asked
    // again for the same step, it takes up new wishes; what is done stays done.
    void reach(std::int64_t step, const Wishes& mine);

    // ---- of the step reached
    bool ends() const { return ends_; }  // no update follows
    bool failed() const { return failed_; }
    int signal() const { return signal_; }
    bool save_asked() const { return save_asked_; }
    bool writing() const { return writing_; }
    bool validation_due() const { return sound() && validation_.due(ends_); }
    // Not where the time is used up: it may take long. Whoever goes on from there has it to do, if it was due.
    bool hellaswag_due() const { return sound() && !out_of_time_ && hellaswag_.due(ends_); }
    bool samples_due() const { return sound() && samples_.due(ends_); }
    // Where the run ends, too, but never of a step that has been saved, nor of none where it failed.
    bool checkpoint_due() const;
    // The report of the last step is to be waited for: something comes before the next one.
    bool pauses() const { return ends_ || save_due_ || validation_due() || hellaswag_due() || samples_due(); }

    // The run ends here, as all ranks know.
    void fail() { ends_ = failed_ = true; }
    // What was due has been done, or was ended early by `signal`, if that is not 0: then it is still owed, and the run
    // ends, too.
    void end_validation(int signal) { end(validation_, signal); }
    void end_hellaswag(int signal) { end(hellaswag_, signal); }
    void end_samples(int signal) { end(samples_, signal); }
    // The checkpoint that was due is of this step. What follows is timed from now.
    void checkpoint_begun();
    // What a run that goes on from this step has to do first.
    bool owes_validation() const { return validation_.owed(); }
    bool owes_hellaswag() const { return hellaswag_.owed(); }
    bool owes_samples() const { return samples_.owed(); }

    double seconds() const;     // since it was made
    bool out_of_time() const;   // now, by the clock of this rank; for all of them where one of them reach()es
    // Why the run ended, for the log: "all steps made", "out of time (--max-minutes)", "interrupted", "error".
    const char* reason() const;

private:
    bool sound() const { return !failed_ && signal_ == 0; }
    void end(Periodic& periodic, int signal);

    Settings settings_;
    Communicator& communicator_;
    Periodic validation_, hellaswag_, samples_, checkpoint_;
    double began_, last_save_;                // seconds_now()
    std::int64_t step_ = -1, saved_ = -1;     // the step reached; that of the last checkpoint
    int signal_ = 0;
    bool ends_ = false, failed_ = false, out_of_time_ = false, save_asked_ = false, save_due_ = false, writing_ = false;
};

}  // namespace llmc
