// between_steps.h - what a run does between two optimizer steps: validation, HellaSwag, samples and checkpoints, each
// when it is due, and the decision whether the run ends
#pragma once
#include "llmc/data/data_loader.h"
#include "llmc/run/checkpoint/checkpoint_writer.h"
#include "llmc/run/loop/evaluator.h"
#include "llmc/run/loop/step_log.h"
#include "llmc/run/loop/tasks.h"

namespace llmc {

class BetweenSteps {
public:
    // Every rank constructs one and makes the same calls. All parts must outlive it.
    BetweenSteps(Loop& loop, const Optimizer& optimizer, CheckpointWriter& checkpoints, StepLog& step_log,
                 const StepBatches& batches);

    // After `made` steps: validates, scores HellaSwag, samples and saves. False: the run ends here.
    bool do_what_is_due(std::int64_t made);
    // After the micro-batches of a step and before its update; the one host collective of a step. False: a rank cannot
    // read its data or write its log, or the model has diverged, and all ranks end the run without this update.
    bool all_can_update();
    // Of a run with --max-minutes, after all_can_update(); empty: without.
    std::optional<Report::Progress> progress() const;
    // Of tasks and checkpoints after `made` steps; 0 if the number of steps is unknown.
    double seconds_of_tasks(std::int64_t made) const {
        return steps_.total ? tasks_.seconds_left(made, *steps_.total) : 0;
    }
    // Once the run ends: saves the last step, unless the model has diverged, waits for the checkpoint and reports the
    // end. Returns the signal that ended the run, or 0. Throws SharedError if a rank failed, or if a run that was not
    // interrupted has saved a model that may have diverged.
    int finish();
    // Instead, or after it, if something in the loop has thrown, on all ranks or on this one only: waits for the
    // checkpoint that is being written, and reports the end unless finish() has. Not collective.
    void end_after_exception();

private:
    std::exception_ptr failure() const;
    RankRequests requests() const;
    std::vector<Task> tasks_in_order();
    std::optional<double> validate(), score_hellaswag(), sample(), save();  // Task::run
    void stop_if_no_better();
    bool agree_on_health();
    struct Began {
        double seconds, stopped;
    };
    Began now() const { return {control_.seconds(), stopped_here()}; }
    double seconds_since(const Began& began) const;
    double stopped_here() const { return loop_.interrupt.stopped_seconds() - stopped_before_; }
    void note_stop(double seconds);
    void note_evaluation(bool ended);
    void report_end(const char* reason);

    Loop& loop_;
    const RunSettings& options_ = loop_.plan.settings;
    const StepPlan& steps_ = loop_.plan.steps;
    Communicator& ranks_ = *loop_.context.world;
    Report& report_ = *loop_.report;
    const Optimizer& optimizer_;
    CheckpointWriter& checkpoints_;
    StepLog& step_log_;
    const StepBatches& batches_;
    Evaluator evaluator_{loop_};
    RunControl control_;
    Tasks tasks_;
    const double stopped_before_ = loop_.interrupt.stopped_seconds();  // before the time of the run began
    double save_began_ = 0;          // RunControl::seconds() without stopped() when the checkpoint began; 0: none did
    bool ended_ = false;             // the end has been reported
    bool noted_ = false, stop_noted_ = false;  // that evaluation takes long; that a process was stopped
    std::int64_t made_ = 0;          // steps
    LoaderPosition next_position_{}; // of the batches of the next step
};

}  // namespace llmc
