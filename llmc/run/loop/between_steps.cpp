// between_steps.cpp - the tasks between two optimizer steps, in their order
#include "llmc/run/loop/between_steps.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"
#include "llmc/base/standard_streams.h"
#include "llmc/comm/agreement.h"
#include "llmc/run/start/train_further.h"

namespace llmc {

BetweenSteps::BetweenSteps(Loop& loop, const Optimizer& optimizer, CheckpointWriter& checkpoints, StepLog& step_log,
                           const StepBatches& batches)
    : loop_(loop),
      optimizer_(optimizer),
      checkpoints_(checkpoints),
      step_log_(step_log),
      batches_(batches),
      control_({.max_minutes = options_.length.minutes, .checkpoint_minutes = options_.checkpoints.minutes,
                .timed = options_.length.is_timed()}, ranks_),
      tasks_(tasks_in_order(), control_) {
    if (const TrainerState* const resumed = loop.resumed()) {
        control_.restore(*resumed);
        tasks_.restore(*resumed, /*branches=*/!loop.startup.appends);
        stop_if_no_better();
    }
    control_.agree(requests());
}

std::vector<Task> BetweenSteps::tasks_in_order() {
    std::vector<Task> tasks{
        {.name = kValidationTask, .every = loop_.batches.validation.empty() ? 0 : options_.validation.every,
         .before_steps = true, .shorter = "fewer --val-tokens or a larger --val-every",
         .run = [this] { return validate(); }},
        {.name = kHellaSwagTask, .every = loop_.batches.hellaswag ? options_.hellaswag.every : 0, .at_the_end = false,
         .shorter = "a larger --hellaswag-every", .run = [this] { return score_hellaswag(); }},
        {.name = kSamplesTask, .every = options_.samples.every,
         .shorter = "fewer --sample-tokens or a larger --sample-every", .run = [this] { return sample(); }}};
    if (!options_.checkpoints.output_dir.empty())
        tasks.push_back({.name = kCheckpointTask, .every = options_.checkpoints.every, .saves = true,
                         .run = [this] { return save(); }});
    return tasks;
}

// The first failure of a part of this rank, or null. They end the run in order, on all ranks.
std::exception_ptr BetweenSteps::failure() const {
    for (const auto& part : {evaluator_.unreadable(), batches_.failure(), report_.failure(), loop_.health.failure()})
        if (part) return part;
    return nullptr;
}

// Whether a rank's health has failed: known to all, because they have seen the same results, or ask each other.
bool BetweenSteps::agree_on_health() {
    const bool failed = loop_.health.failure() != nullptr;
    return optimizer_.is_local() ? loop_.health.agree(ranks_) : failed;
}

RankRequests BetweenSteps::requests() const {
    return {.signal = loop_.interrupt.signal(), .save = loop_.interrupt.save_requested(),
            .failed = failure() != nullptr, .stopped = stopped_here(), .tasks = tasks_.states()};
}

bool BetweenSteps::do_what_is_due(std::int64_t made) {
    made_ = made;
    next_position_ = batches_.position();
    control_.reach(steps_.ends_after(made));
    tasks_.reach(made, steps_.ends_after(made), optimizer_.in_round());
    if (!checkpoints_.is_writing()) {
        checkpoints_.end(/*last=*/false);
        if (save_began_ > 0) tasks_.save_took(control_.seconds() - control_.stopped() - std::exchange(save_began_, 0));
    }
    if (control_.save_requested()) {
        loop_.interrupt.save_begins();
        if (loop_.first_rank() && options_.checkpoints.output_dir.empty())
            print_stderr("note: SIGUSR2: no --output-dir is set, so no checkpoint is written");
    }
    if (tasks_.pauses()) {
        step_log_.flush();  // then all ranks know the results of the same steps
        if (agree_on_health()) control_.fail();
    }
    note_evaluation(/*ended=*/false);
    while (tasks_.run_next()) {}
    return !control_.ends();
}

// A task is as long as this without the seconds in which a rank was stopped, which say nothing about the next one.
// Collective.
double BetweenSteps::seconds_since(const Began& began) const {
    const double stopped = stopped_here() - began.stopped;
    return std::max(control_.seconds() - began.seconds - 1e-3 * double(ranks_.host_reduce(std::int64_t(1e3 * stopped),
                                                                                          HostReduction::max)), 0.0);
}

std::optional<double> BetweenSteps::validate() {
    const Began began = now();
    const int signal = evaluator_.validate(made_);
    if (signal != 0) control_.interrupt(signal);
    else if (evaluator_.unreadable()) control_.fail();
    if (!control_.intact()) return {};
    if (made_ == 0) control_.training_begins();
    if (options_.checkpoints.keep_best && loop_.health.state().best_validation_after == made_) tasks_.save_now();
    stop_if_no_better();
    return seconds_since(began);  // with its report
}

void BetweenSteps::stop_if_no_better() {
    const std::int64_t most = options_.validation.stop_after;
    if (most > 0 && loop_.health.state().validations_since_best >= most)
        control_.stop_early();
}

std::optional<double> BetweenSteps::score_hellaswag() {
    const Began began = now();
    const HellaSwagScore score = evaluator_.score_hellaswag(made_, [this] { return control_.is_time_up_here(); });
    if (score.signal != 0) control_.interrupt(score.signal);
    else if (score.out_of_time) control_.run_out_of_time();
    if (score.signal != 0 || score.out_of_time) return {};
    return seconds_since(began);
}

std::optional<double> BetweenSteps::sample() {
    const Began began = now();
    if (const int signal = evaluator_.sample(made_); signal != 0) {
        control_.interrupt(signal);
        return {};
    }
    return seconds_since(began);
}

bool BetweenSteps::all_can_update() {
    control_.agree(requests());
    note_stop(control_.stopped());
    return !control_.failed();
}

// Once, for the rank that was stopped longest.
void BetweenSteps::note_stop(double seconds) {
    if (seconds == 0 || std::exchange(stop_noted_, true)) return;
    report_.warn(made_, {"stopped", "a process of the run was stopped for about " + clock_text(seconds) +
                                        " (Ctrl-Z, SIGSTOP): all times include it, also --max-minutes"});
}

// Once: as soon as the length of the run can be estimated from its steps, or at its end.
void BetweenSteps::note_evaluation(bool ended) {
    constexpr double kShare = 0.1, kLeast = 5;  // of the run; seconds, less is not worth a note
    const auto step_seconds = step_log_.seconds_of(steps_.at(made_ + 1).positions);
    if (noted_ || !loop_.first_rank() || !(ended || step_seconds)) return;
    std::int64_t total = ended ? made_ : steps_.total.value_or(std::numeric_limits<std::int64_t>::max());
    if (!ended && options_.length.minutes > 0)
        total = std::min(total, made_ + tasks_.steps_within(control_.seconds_left(), *step_seconds));
    const auto [used, left, longest] = tasks_.evaluation(made_ + ended, total);
    const double length = control_.seconds() + double(total - made_) * step_seconds.value_or(0) + left;
    if (used + left < std::max(kLeast, kShare * length)) return;
    noted_ = true;
    print_stderr("note: evaluation takes " + clock_text(used + left) + " of the " + clock_text(length) +
                 " of this run, most of it " + longest->name + ": use " + longest->shorter);
}

std::optional<Report::Progress> BetweenSteps::progress() const {
    if (options_.length.minutes == 0) return {};
    return Report::Progress{.share = control_.share(), .seconds_left = control_.seconds_left(),
                            .is_length = options_.length.is_timed()};
}

// A failure of a part leaves the model intact, so it is saved. A diverged model is not saved: the skipped steps do not
// change it, but the updates before them have damaged it, also if its weights are finite. --resume auto would take it,
// and --keep-checkpoints would delete a better one for it.
std::optional<double> BetweenSteps::save() {
    if (loop_.health.diverged()) return 0;
    const double began = control_.seconds();
    const RunHealth::InARow in_a_row = loop_.health.in_a_row();
    checkpoints_.begin({.step = made_, .failed_in_a_row = in_a_row.failed, .without_update = in_a_row.without_update,
                        .data = next_position_, .batches = steps_.changes(),
                        .noise = {step_log_.noise().averages()}, .health = loop_.health.state(),
                        .seconds = control_.run_seconds(), .tasks = tasks_.states()});
    const double waited = control_.seconds() - began;
    checkpoints_.waited(waited);
    if (optimizer_.in_round() && loop_.first_rank())
        print_stderr("note: this checkpoint is saved within a round: its model is that of the last outer step, and a "
                     "resumed run continues the round");
    // A checkpoint that was still being written is complete: begin() has waited for it.
    if (save_began_ > 0) tasks_.save_took(control_.seconds() - control_.stopped() - save_began_);
    save_began_ = began - control_.stopped();
    control_.checkpoint_begun();
    return waited;
}

int BetweenSteps::finish() {
    step_log_.flush();
    agree_on_health();
    step_log_.end(made_);
    note_evaluation(/*ended=*/true);
    while (tasks_.run_next()) {}  // after a failure in a step: saves
    std::exception_ptr unsaved;
    try {
        checkpoints_.end(/*last=*/!control_.failed());  // an earlier failure is the one to report
    } catch (const SharedError&) {
        unsaved = std::current_exception();
    }
    note_stop(double(ranks_.host_reduce(std::int64_t(stopped_here()), HostReduction::max)));
    checkpoints_.name_best(loop_.health.state());
    std::exception_ptr failed = unsaved ? unsaved : failure();
    // A run that a signal ended can be resumed, and continues to count.
    if (!failed && control_.signal() == 0) failed = loop_.health.divergence();
    report_end(failed ? "error" : control_.reason());
    share_failure(ranks_, failed);
    return control_.signal();
}

void BetweenSteps::end_after_exception() {
    try {
        checkpoints_.end(/*last=*/false);
    } catch (const std::exception&) {  // the ranks have lost their connection; the caller reports the first error
    }
    report_end("error");
}

void BetweenSteps::report_end(const char* reason) {
    if (std::exchange(ended_, true)) return;
    const bool complete = options_.length.is_timed() ? control_.out_of_time() && control_.intact()
                                              : steps_.ends_after(made_) && !control_.failed();
    std::vector<std::string> further;
    if (complete)
        further = ways_to_train_further(loop_.plan, made_, control_.run_seconds(), tasks_.states());
    report_.end(made_, reason, control_.seconds(), checkpoints_.best(loop_.health.state()), further);
}

}  // namespace llmc
