// tasks.h - what a run does between two steps, a row for each task: when it is due, how it runs, how long it took
#pragma once
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
    // The checkpoint: also due on request, and when the run ends for any reason, but for a failure before its first
    // step. Training waits for a part of it only.
    bool saves = false;
    const char* shorter = "";  // how the user makes it take less of the run
    // Runs it on all ranks. Returns the seconds for which training waited; empty: something else ended it.
    std::function<std::optional<double>()> run;
};

// The same on all ranks, as RunControl is.
class Tasks {
public:
    // In the order in which they run. `control` must outlive it.
    Tasks(std::vector<Task> tasks, const RunControl& control);
    // Before the first reach() of a resumed run: a task that was done does not run again, nor is the checkpoint written
    // again, unless the run branches off into another folder.
    void restore(const TrainerState& state, bool branches);

    // `made` steps have been made, after control.reach(). A second call with the same number changes nothing.
    // `waits`: within a round of local steps; what is due waits for its end, but a requested checkpoint does not.
    void reach(std::int64_t made, bool last, bool waits = false);
    // Runs the first task that is due. False: none is.
    bool run_next();
    // Some task comes before the next step, or the run ends: wait for the last step's report first.
    bool pauses() const { return control_.ends() || first_due() < rows_.size(); }
    void save_now() { save_now_ = true; }
    void save_took(double seconds);  // with the part for which training did not wait

    TaskStates states() const;

    // What is due after `made` steps or more, of `total`, takes as long as last time, or 0 if it has never run.
    struct Evaluation {
        double used = 0, left = 0;      // seconds of all tasks but saving: since construction; of those that are due
        const Task* longest = nullptr;  // the one with the most of both; null: none has run
    };
    Evaluation evaluation(std::int64_t made, std::int64_t total) const;
    double seconds_left(std::int64_t made, std::int64_t total) const;  // also of checkpoints
    // The number of steps that fit into this time, with their tasks.
    std::int64_t steps_within(double seconds, double step_seconds) const;

private:
    struct Row {
        Task task;
        std::int64_t done = -1;  // the number of steps made when it last ran; -1: it has not
        TaskState state{};
        struct {
            double last = 0, all = 0;  // in the last run of it; in all since construction
        } seconds{};
    };
    bool may_run(const Task& task) const { return task.every > 0 && (made_ > 0 || task.before_steps); }
    bool is_due(const Row& row) const;
    std::size_t first_due() const;  // rows_.size(): none

    std::vector<Row> rows_;
    const RunControl& control_;
    std::int64_t made_ = -1;  // steps, at the last reach()
    bool save_now_ = false, waits_ = false;
};

}  // namespace llmc
