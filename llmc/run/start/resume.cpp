// resume.cpp - the search for a complete checkpoint, and the comparison of two runs
#include "llmc/run/start/resume.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "llmc/base/file_status.h"
#include "llmc/base/input_file.h"
#include "llmc/base/json_text.h"
#include "llmc/base/number_text.h"
#include "llmc/base/option.h"
#include "llmc/base/standard_streams.h"
#include "llmc/base/terminal.h"
#include "llmc/run/log/report.h"
#include "llmc/weights/manifest.h"
#include "llmc/weights/step_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void note(const std::string& text) { print_stderr("note: " + text); }

// Shows progress: large checkpoints take long to read.
void check_and_show(const fs::path& folder) {
    ProgressLine progress;
    check_manifest(folder, [&](double share) { progress.show_share("reading the checkpoint", share); });
}

// Which file of the checkpoint is missing or has changed; "": none.
std::string why_damaged(const fs::path& folder) {
    try {
        check_and_show(folder);
    } catch (const UnreadableError&) {  // it may be complete
        throw;
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

// The newest complete checkpoint; empty: there is none.
fs::path newest_complete(const CheckpointSettings& checkpoints, ResumeSearch& search) {
    fs::path complete;
    const auto folders = step_folders(checkpoints.output_dir);
    for (auto entry = folders.rbegin(); entry != folders.rend(); ++entry) {
        const fs::path& folder = entry->second;
        const std::string why = why_damaged(folder);
        if (why.empty()) {
            complete = folder;
            break;
        }
        note("--resume auto skips " + folder.string() + ": " + why);
        search.damaged.push_back({folder, why});
    }
    require(!complete.empty() || search.damaged.empty(), "--resume", "auto",
            "a complete checkpoint in " + checkpoints.output_dir,
            "restore one, or start a new run in another --output-dir");
    std::error_code none;
    fs::directory_iterator entry(checkpoints.output_dir, none);
    for (const fs::directory_iterator end; !none && entry != end; entry.increment(none)) {
        if (!is_partial_checkpoint(entry->path())) continue;
        note("--resume auto skips " + entry->path().string() + ": incomplete");
        search.unfinished.push_back(entry->path());
    }
    return complete;
}

bool is_damaged(const ResumeSearch& search, const fs::path& folder) {
    return std::ranges::find(search.damaged, folder, &ResumeSearch::Damaged::folder) != search.damaged.end();
}

// --resume auto must not restart from step 0 a run that was resumed from another run's checkpoint (a branch) and has
// not saved a checkpoint of its own yet: it would silently lose the progress of the other run.
void require_no_origin(const CheckpointSettings& checkpoints) {
    const fs::path path = fs::path(checkpoints.output_dir) / kLogName;
    const auto status = find_status(path);
    if (!status || !S_ISREG(status->st_mode)) return;  // opening a pipe would block
    std::ifstream log(path);
    if (!log) fail_as_unreadable(path.string());
    std::string origin;
    for (std::string line; std::getline(log, line);) {  // lines that are not JSON are ignored
        const json event = parse_json(line);
        if (!event.is_object() || event.value("event", json()) != "resume") continue;
        const json folder = event.value("folder", json());
        origin = folder.is_string() ? folder.get<std::string>() : "";
    }
    require(origin.empty(), "--resume", "auto",
            "a checkpoint in " + checkpoints.output_dir + ": its run resumed from " + origin + " and saved none",
            "move its log.jsonl away and use --resume " + origin);
}

// Before the new run is announced. A folder that does not exist yet is created later.
void require_writable(const std::string& folder) {
    std::error_code none;  // whatever else is wrong is reported later
    if (!fs::is_directory(folder, none) || faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return;
    const int fault = errno;
    fail("--output-dir", in_quotes(folder), std::string("a folder that can be written to: ") + std::strerror(fault),
         advice_after(fault) + ", or choose another folder");
}

// The folder for --resume, on rank 0; empty: none.
fs::path folder_of(const CheckpointSettings& checkpoints, ResumeSearch& search) {
    if (checkpoints.resume == "auto") {
        const fs::path newest = newest_complete(checkpoints, search);
        if (newest.empty()) {
            require_no_origin(checkpoints);
            require_writable(checkpoints.output_dir);
            const fs::path before = fs::path(checkpoints.output_dir) / kOptionsName;
            if (is_present(fs::path(checkpoints.output_dir) / kLogName) && is_present(before))
                search.options = read_text(before.string(), "the options of a run");
            note("--resume auto: no checkpoint in " + checkpoints.output_dir + ", starting a new run at step 0" +
                 (search.options.empty() ? "" : ", with the options in " + before.string()));
        }
        return newest;
    }
    if (checkpoints.resume.empty() || checkpoints.resume == "never") return {};
    const fs::path folder = checkpoints.resume;
    const std::string given = in_quotes(checkpoints.resume);
    require(is_present(folder), "--resume", given + ", which does not exist", "auto, never or a checkpoint's folder",
            "use a step_XXXXXXXX folder of an output folder");
    require(!is_partial_checkpoint(folder.has_filename() ? folder : folder.parent_path()), "--resume",
            given + ", incomplete", "a complete checkpoint", "use another step_XXXXXXXX folder, or auto");
    require(fs::is_directory(folder), "--resume", given + ", a file", "auto, never or a checkpoint's folder");
    if (!is_present(folder / kManifestName)) {
        require(step_folders(folder).empty(), "--resume", given + ", a run's folder", "a checkpoint in it",
                "use one of its step_XXXXXXXX folders, or --output-dir " + checkpoints.resume + " --resume auto");
        require(!is_present(folder / "config.json") || is_present(folder / kStateName), "--resume",
                given + ", a model without a trainer state", "a complete checkpoint of this program",
                "start a new run from it with --init");
    }
    check_and_show(folder);
    return folder;
}

}  // namespace

ResumeSearch find_resumption(const CheckpointSettings& checkpoints, Communicator& communicator) {
    ResumeSearch search;
    std::string name;
    on_first_rank(communicator, [&] { name = folder_of(checkpoints, search).string(); });
    const fs::path folder = communicator.host_gather(name)[0];
    search.options = communicator.host_gather(search.options)[0];
    if (!folder.empty())
        search.resumption = together(communicator, [&] {
            TrainerState state = read_trainer_state(folder);
            RunSettings before = continued({}, *state.run.options, (folder / kStateName).string()).settings;
            Resumption resumption{folder, std::move(state), std::move(before)};
            const std::string name = folder.filename().string();
            const std::string of_step = step_folder({}, resumption.state.step).string();
            require(name.size() != of_step.size() || !name.starts_with("step_") || name == of_step,
                    "the step of " + folder.string(), resumption.state.step, "the step in its name",
                    "restore the folder's name");
            return resumption;
        });
    return search;
}

RunSettings options_of_run(const CommandLine& line, const ResumeSearch& search, int started) {
    if (!line.resumes()) return line.settings;
    const int planned = int(line.settings.dry_run.ranks), ranks = planned > 0 ? planned : started;
    CommandLine all = line;
    if (search.resumption) {
        const RunIdentity& before = search.resumption->state.run;
        all = continued(line, *before.options, (search.resumption->folder / kStateName).string());
        RunSettings& o = all.settings;
        if (o.batch.seq_len == 0) o.batch.seq_len = search.resumption->settings.batch.seq_len;
        const std::int64_t at_once = o.batch.seq_len * ranks,  // tokens of one sequence of every rank
                           last = search.resumption->state.last_step_tokens();
        if (o.batch.schedule.empty()) {
            require(line.given.contains("total-batch-tokens") || last % at_once == 0, "the number of ranks", ranks,
                    "a divisor of the " + counted(last / o.batch.seq_len, "sequence") +
                        " of a step, which a resumed run keeps", "start another number of ranks, or set -d");
            const bool other_step = o.batch.micro_batch * at_once != last;  // also of -b auto
            if (o.batch.tokens == 0 && other_step) o.batch.tokens = last;
        }
        // Other ranks make the same steps: a smaller micro-batch, if none is given.
        std::int64_t common = 0;
        for (const ScheduledBatch& batch : sizes_of_steps(o.batch, ranks))
            common = std::gcd(common, batch.tokens);
        const std::int64_t sequences = common / at_once;
        if (!line.given.contains("micro-batch") && o.batch.micro_batch > 0 && sequences > 0 && common % at_once == 0) {
            o.batch.micro_batch = std::min(o.batch.micro_batch, sequences);
            while (sequences % o.batch.micro_batch != 0) --o.batch.micro_batch;
        }
    } else if (!search.options.empty()) {
        const std::string file = (fs::path(line.settings.checkpoints.output_dir) / kOptionsName).string();
        all = continued(line, parse_json_object(file, search.options, "remove it, and pass the options again"), file);
    }
    check_together(all.settings, all.given);
    return all.settings;
}

void clear_for_resumption(const ResumeSearch& search, const CheckpointSettings& checkpoints) {
    const auto require_as_found = [&](bool as_found) {
        require(as_found, "--output-dir", '"' + checkpoints.output_dir + '"', "the checkpoints that --resume has found",
                "another run has just saved one: start this run again, and check that no other run uses this folder");
    };
    if (checkpoints.resume == "auto") {
        const auto now = step_folders(checkpoints.output_dir);
        const std::int64_t step = search.resumption ? search.resumption->state.step : -1;
        require_as_found(now.empty() || now.rbegin()->first <= step || is_damaged(search, now.rbegin()->second));
    }
    // Again, because another run may have held the log during the search.
    for (const auto& [folder, why] : search.damaged)
        require_as_found(fs::exists(fs::symlink_status(folder)) && why_damaged(folder) == why);
    if (search.resumption)
        require(is_present(search.resumption->folder), "the checkpoint " + search.resumption->folder.string(),
                "no longer there", "the checkpoint that --resume has found",
                "another run has deleted it (--keep-checkpoints): start this run again, and check that no other run "
                "uses this folder");
    for (const auto& [folder, why] : search.damaged) {
        const fs::path aside = free_name(folder.string() + ".damaged");
        std::error_code fault;
        fs::rename(folder, aside, fault);
        if (fault)
            throw Error("cannot rename the damaged checkpoint " + folder.string() + " to " + aside.string() + ": " +
                        fault.message() + "; rename or remove it yourself");
        note("renamed to " + aside.string());
    }
    std::error_code none;
    for (const fs::path& folder : search.unfinished) fs::remove_all(folder, none);
}

bool appends_to_log(const CheckpointSettings& checkpoints, const Resumption* resumption) {
    if (checkpoints.resume == "auto") return true;
    std::error_code none;  // for example if the folder does not exist yet
    return resumption && fs::equivalent(fs::canonical(resumption->folder).parent_path(), checkpoints.output_dir, none);
}

void require_free_names(const ResumeSearch& search, const CheckpointSettings& checkpoints) {
    if (checkpoints.output_dir.empty()) return;
    const std::string given = in_quotes(checkpoints.output_dir);
    const Resumption* const resumption = search.resumption ? &*search.resumption : nullptr;
    const bool own = resumption && appends_to_log(checkpoints, resumption);
    for (const auto& [step, folder] : step_folders(checkpoints.output_dir)) {
        if ((own && step <= resumption->state.step) || is_damaged(search, folder)) continue;
        fail("--output-dir", given, "a folder without " + folder.filename().string() +
                                        (own ? ", after the step that --resume continues from"
                                             : ", another run's checkpoint, which --resume auto would find"),
             own ? "choose another folder, or move that one away"
                 : "resume that run with --resume auto, choose another folder, or move that one away");
    }
}

void require_usable_names(const CheckpointSettings& checkpoints) {
    const auto require_kind = [&](const char* name, bool is, const char* kind) {
        require(is, "--output-dir", in_quotes(checkpoints.output_dir),
                std::string("a folder in which ") + name + " is " + kind,
                "remove or rename it, or choose another folder");
    };
    if (checkpoints.output_dir.empty()) return;
    const fs::path folder = checkpoints.output_dir;
    std::error_code none;
    for (const char* const name : {kLogName, kOptionsName})
        require_kind(name, !is_present(folder / name) || fs::is_regular_file(folder / name, none), "a file");
    const fs::file_status best = fs::symlink_status(folder / kBestName, none);
    require_kind(kBestName, !checkpoints.keep_best || !fs::exists(best) || fs::is_symlink(best),
                 "the link of --keep-best");
}

bool are_same(const std::vector<Fact>& some, const std::vector<Fact>& others) {
    return std::ranges::equal(some, others,
                              [](const Fact& a, const Fact& b) { return a.name == b.name && a.value == b.value; });
}

namespace {

// Of a pattern, after the shards in a list of shard_facts(); 0: there are none; -1: the fact is another one.
double weight_in(const Fact& fact) {
    return fact.value.starts_with("weight ") ? std::strtod(fact.value.c_str() + 7, nullptr) : -1;
}

// What differs between two lists of shard_facts().
std::string difference_of(const std::vector<Fact>& then, const std::vector<Fact>& today) {
    std::vector<std::string> before, now;
    bool weighted = false;
    for (const auto& [facts, shards] : {std::pair(&then, &before), {&today, &now}})
        for (const Fact& fact : *facts) {
            weighted |= weight_in(fact) > 0;
            if (weight_in(fact) < 0) shards->push_back(fact.value);
        }
    if (before == now) return weighted ? "other weights" : "other sets of the same shards";
    if (before.size() != now.size()) return "another number of shards";
    std::ranges::sort(before);
    std::ranges::sort(now);
    return before == now ? "the same shards in another order" : "different shards";
}

// "books_*.bin:3" (30 %), "web_*.bin:7" (70 %)
std::string mix_of(const RunIdentity& run) {
    std::string text;
    double all = 0;
    for (const Fact& fact : run.training_data) all += std::max(weight_in(fact), 0.0);
    const auto patterns = values_of_setting("train-data", run.options->value("train-data", json("")));
    auto pattern = patterns.begin();
    for (const Fact& fact : run.training_data)
        if (weight_in(fact) > 0 && pattern != patterns.end())
            text += (text.empty() ? "" : ", ") + in_quotes(*pattern++) +
                    format(" (%.4g %%)", 100 * weight_in(fact) / all);
    return text.empty() ? "without weights" : text;
}

}  // namespace

Changes changes_since(const RunIdentity& before, const RunIdentity& now, bool new_data) {
    const auto require_same = [](const std::string& what, const std::string& then, const std::string& today) {
        require(then == today, what, today, then + ", as in the run that --resume continues",
                "use the same, or start a new run from its model with --init");
    };
    const nlohmann::json &then = *before.options, &today = *now.options;
    RunSettings any = all_decided({});
    const OptionList options = option_table(any);
    const auto for_each = [&](OnResume rule, const auto& compare) {
        for (const Option& option : options.options) {
            const std::string name = option.name();
            // An earlier version without the flag computed as its default does.
            if (option.resume == rule && (then.contains(name) || (rule == OnResume::same && !option.is_auto())))
                compare("--" + name, text_of(then.value(name, option.json())), text_of(today[name]));
        }
    };
    for_each(OnResume::same, require_same);
    // Otherwise the first new checkpoint would silently delete the checkpoints that --major-every has kept.
    const auto of = [](const json& options_of) { return continued({}, options_of, kStateName).settings.checkpoints; };
    const CheckpointSettings is = of(today), was = of(then);
    require(is.keep == 0 || was.major_every == 0 || is.major_every != 0, "--major-every", 0,
            std::to_string(was.major_every) + ", as in the run that --resume continues: otherwise --keep-checkpoints "
            "deletes the checkpoints that --major-every kept", "set it to this or another value");
    Changes changes{.data = !are_same(before.training_data, now.training_data)};
    for (std::size_t i = 0; i < std::max(before.training_data.size(), now.training_data.size()); ++i) {
        const auto fact = [i](const RunIdentity& run) {
            return i < run.training_data.size() ? run.training_data[i] : Fact{"nothing", "more"};
        };
        const Fact was = fact(before), is = fact(now);
        if (new_data || are_same({was}, {is})) continue;
        const bool mix = weight_in(was) > 0 || weight_in(is) > 0, number = is.name.starts_with("a number of ");
        const auto text = [&](const RunIdentity& run) {
            const auto [name, value, detail] = fact(run);
            return mix ? mix_of(run) : (number ? "" : name + ' ') + value + (detail.empty() ? "" : ", " + detail);
        };
        fail(number ? "the number of training shards" : "the training data", text(now),
             text(before) + ", as in the run that --resume continues",
             "use the same shards and weights, or --allow-new-data to read these from the first row");
    }
    if (changes.data)
        changes.options.push_back("training data: " + difference_of(before.training_data, now.training_data) +
                                  ", read from the first row; lowest training loss, outlier window, noise scale and "
                                  "the count of --stop-after start again");
    // Reported, because scores are not comparable and a different file may have the old name.
    const auto are_others = [](const std::vector<Fact>& then, const std::vector<Fact>& today) {
        return !then.empty() && !today.empty() && !are_same(then, today);
    };
    changes.validation = are_others(before.validation_data, now.validation_data);
    if (changes.validation)
        changes.options.push_back("validation data: " + difference_of(before.validation_data, now.validation_data));
    if (are_others(before.hellaswag, now.hellaswag)) changes.options.push_back("HellaSwag: different examples");

    const auto compare = [&](const std::string& what, const std::string& then, const std::string& today) {
        if (then != today) changes.options.push_back(what + ' ' + then + " -> " + today);
    };
    compare("ranks", std::to_string(before.ranks), std::to_string(now.ranks));
    for_each(OnResume::may_change, compare);
    return changes;
}

void forget_other_data(TrainerState& state, const Changes& changes) {
    HealthState& health = state.health;
    if (!changes.data && !changes.validation) return;
    health.validations_since_best = health.worse_validations = 0;
    health.has_mean_at_best = false;  // losses of training and validation are compared
    if (changes.validation) {
        health.best_validation = 0;
        health.best_validation_after = -1;
    }
    if (!changes.data) return;
    health.lowest_loss = health.loss_sum = 0;
    health.lowest_after = -1;
    health.losses = health.high_steps = 0;
    state.failed_in_a_row = state.without_update = 0;
    std::ranges::fill(state.noise, NoiseAverages{});
    const auto empty_window = [](OptimizerCounts& of) { of.losses.clear(), of.norms.clear(); };
    empty_window(state.optimizer);
    std::ranges::for_each(state.workers, empty_window);
}

}  // namespace llmc
