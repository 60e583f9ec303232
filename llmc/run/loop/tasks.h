// tasks.h - what a run does between two steps, a row for each task: when it is due, how it runs, how long it took
#pragma once
#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "llmc/run/control/run_control.h"

namespace llmc {

struct Task {
    const char* name;           // of its TaskState
    std::int64_t every = 0;     // due after every `every`-th step and after the last one; 0: never
    bool before_steps = false;  // also due before the first step
    // It also runs when the time of the run is used, and is left as much of it as it took last; near the end it waits
    // for that. Others stay pending then, because they may take long.
    bool at_the_end = true;
    const char* shorter = "";  // how the user makes it take less of the run
    // Runs it on all ranks. Returns the seconds that it took; empty: something else ended it.
    std::function<std::optional<double>()> run;
};

// The same on all ranks, as RunControl is.
class Tasks {
public:
    struct Checkpoints {
        std::int64_t every = 0;  // steps; 0: only at the end
        bool saves = false;      // there is a folder for them
        bool branches = false;   // the run resumes from a checkpoint in another folder
    };
    // In the order in which they run. `control` must outlive it.
    Tasks(std::vector<Task> tasks, const Checkpoints& checkpoints, const RunControl& control);
    // Before the first reach() of a resumed run: a task that was done does not run again. The checkpoint it resumes
    // from is not written again.
    void restore(const TrainerState& state);

    // `made` steps have been made, after control.reach(). A second call with the same number changes nothing.
    // `waits`: within a round of local steps; what is due waits for its end, but a requested checkpoint does not.
    void reach(std::int64_t made, bool last, bool waits = false);
    // Runs the first task that is due. False: none is.
    bool run_next();
    // Some task comes before the next step, or the run ends: wait for the last step's report first.
    bool pauses() const { return control_.ends() || checkpoint_due() || first_due() < rows_.size(); }

    // Also when the run ends; never twice for the same step, and not if the run failed before its first step.
    bool checkpoint_due() const;
    void checkpoint_now() { save_due_ = true; }
    void checkpoint_begun() { saved_ = made_; }
    void checkpoint_took(double seconds) { checkpoint_seconds_ = seconds; }
    void checkpoint_waited(double seconds) { checkpoint_waited_ = seconds; }  // training, for the copy

    TaskStates states() const;  // of the tasks, and of kCheckpointTask

    // What is due after `made` steps or more, of `total`, takes as long as last time, or 0 if it has never run.
    struct Evaluation {
        double used = 0, left = 0;      // seconds of all tasks: since construction; of those that are due
        const Task* longest = nullptr;  // the one with the most of both; null: none has run
    };
    Evaluation evaluation(std::int64_t made, std::int64_t total) const;
    double seconds_left(std::int64_t made, std::int64_t total) const;  // also of checkpoints
    // The number of steps that fit into this time, with their tasks.
    std::int64_t steps_within(double seconds, double step_seconds) const;

private:
    struct Row {
        Task task;
        bool may_run = false;  // if the run ends after this step
        TaskState state{};
        struct {
            double last = 0, all = 0;  // in the last run of it; in all since construction
        } seconds{};
    };
    std::size_t first_due() const;  // rows_.size(): none

    std::vector<Row> rows_;
    const Checkpoints checkpoints_;
    const RunControl& control_;
    std::int64_t made_ = -1, saved_ = -1;  // steps at the last reach(); of the last checkpoint
    double checkpoint_seconds_ = 0, checkpoint_waited_ = 0;
    bool interval_ends_ = false, save_due_ = false, waits_ = false;
};

}  // namespace llmc
