// train_further.cpp - commands that continue a completed run, and the learning rates of their first steps
#include "llmc/run/start/train_further.h"

#include <cerrno>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/file_status.h"
#include "llmc/base/number_text.h"
#include "llmc/base/terminal.h"
#include "llmc/base/value_text.h"
#include "llmc/run/control/run_control.h"
#include "llmc/run/log/report.h"
#include "llmc/weights/manifest.h"
#include "llmc/weights/step_folder.h"

namespace llmc {

std::string resume_command(const std::string& out, const std::string& from, int ranks) {
    return (ranks == 1 ? program_invocation_name : "start the " + std::to_string(ranks) + " ranks again, with") +
           (" -o " + for_shell(out) + " -y " + for_shell(from));
}

std::vector<std::string> ways_to_train_further(const RunPlan& plan, std::int64_t made, const RunSeconds& seconds,
                                               const TaskStates& tasks) {
    const StepPlan& steps = plan.steps;
    const double max_minutes = plan.settings.length.minutes;
    const std::string& output_dir = plan.settings.checkpoints.output_dir;
    const bool timed = plan.settings.length.is_timed(), cools = plan.schedule.kind == LrSchedule::wsd;
    const double minutes = timed ? longer_minutes(max_minutes, seconds.used) : 0;
    Schedule longer = plan.schedule;
    if (longer.total_steps) longer.total_steps = steps.in_first_steps(2 * made);
    // The learning rate of a step: in this run, and in the longer one.
    const auto rates = [&](std::int64_t number, const RunSeconds& until, const TaskStates& with) {
        const auto share = [&](double of) { return timed ? share_of_time(until, with, of * 60) : 0; };
        return std::pair(plan.schedule.learning_rate(steps.at(number), share(max_minutes)),
                         longer.learning_rate(steps.at(number), share(minutes)));
    };
    const double last = rates(timed ? made + 1 : made, seconds, tasks).first,
                 next = rates(made + 1, seconds, tasks).second;
    std::string before_cooldown;
    try {
        for (const auto& [saved, folder] : step_folders(output_dir)) {
            if (!cools || saved == 0 || saved >= made || !has_files_of_manifest(folder)) continue;
            const TrainerState state = timed ? read_trainer_state(folder) : TrainerState{};
            if (const auto [here, there] = rates(saved + 1, state.seconds, state.tasks); here == there)
                before_cooldown = folder.string();
        }
    } catch (const Error&) {  // a folder cannot be read
    }
    const int ranks = steps.batch().world;
    const std::string flag = timed ? " --max-minutes " + text_of_number(minutes) : " -x " + std::to_string(2 * made);
    const bool rises = next > last;
    std::vector<std::string> ways;
    if (rises && !before_cooldown.empty())
        ways.push_back("to train further from before the cool-down: " +
                       resume_command(free_name(output_dir.substr(0, output_dir.find_last_not_of('/') + 1) +
                                                "-further").string(), before_cooldown, ranks) + flag);
    const std::string why = cools && ways.empty() ? "no checkpoint from before the cool-down is left, and " : "";
    ways.push_back("to train further" +
                   (rises ? " (" + why + format("the learning rate rises from %.3g to %.3g)", last, next) : "") + ": " +
                   resume_command(output_dir, "auto", ranks) + flag);
    return ways;
}

}  // namespace llmc
