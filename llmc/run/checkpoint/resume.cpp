// resume.cpp - the search for a whole checkpoint, and the comparison of two runs
#include "llmc/run/resume.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iostream>
#include <ranges>

#include "llmc/base/counted.h"
#include "llmc/base/json_text.h"
#include "llmc/base/standard_streams.h"
#include "llmc/base/terminal.h"
#include "llmc/run/report.h"
#include "llmc/weights/checkpoint.h"
#include "llmc/weights/manifest.h"
#include "llmc/weights/model_path.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void note(const std::string& text) { tell_stderr("note: " + text); }

// A large one takes long to read.
void check_and_show(const fs::path& folder) {
    ProgressLine progress;
    check_manifest(folder, [&](double share) { progress.show_share("reading the checkpoint", share); });
}

// The newest whole one; empty: there is none at all.
fs::path newest_whole(const Options& options, Found& found) {
    fs::path whole;
    for (const fs::path& folder : step_folders(options.output_dir) | std::views::values | std::views::reverse) {
        try {
            check_and_show(folder);
            whole = folder;
            break;
        } catch (const Error& error) {
            note("--resume auto passes over " + folder.string() + ": " + error.what());
            found.damaged.push_back(folder);
        }
    }
    require(!whole.empty() || found.damaged.empty(), "--resume", "auto", "a whole checkpoint in " + options.output_dir,
            "restore one, or start anew in another --output-dir");
    std::error_code none;
    for (fs::directory_iterator entry(options.output_dir, none), end; !none && entry != end; entry.increment(none)) {
        if (!is_partial_checkpoint(entry->path())) continue;
        note("--resume auto passes over " + entry->path().string() + ": not written to its end");
        found.unfinished.push_back(entry->path());
    }
    return whole;
}

bool is_damaged(const Found& found, const fs::path& folder) {
    return std::ranges::find(found.damaged, folder) != found.damaged.end();
}

// NAME, NAME2, NAME3, ...: the first that nothing has.
fs::path free_name(const std::string& name) {
    fs::path free = name;
    for (int number = 2; fs::exists(fs::symlink_status(free)); ++number) free = name + std::to_string(number);
    return free;
}

// A branch of another run that has no checkpoint of its own so far must not begin at the start.
void require_no_origin(const Options& options) {
    const fs::path path = fs::path(options.output_dir) / kLogName;
    if (!fs::is_regular_file(path)) return;  // a pipe would be waited for
    std::ifstream log(path);
    std::string origin;
    for (std::string line; std::getline(log, line);) {  // whatever stands in it
        const json event = parse_json(line);
        if (!event.is_object() || event.value("event", json()) != "resume") continue;
        const json folder = event.value("folder", json());
        origin = folder.is_string() ? folder.get<std::string>() : "";
    }
    require(origin.empty(), "--resume", "auto", "a checkpoint in " + options.output_dir + ", whose run went on from " +
            origin, "move its log.jsonl away and give --resume " + origin);
}

// What --resume names, on rank 0.
fs::path folder_of(const Options& options, Found& found) {
    if (options.resume == "auto") {
        const fs::path newest = newest_whole(options, found);
        if (newest.empty()) {
            require_no_origin(options);
            note("--resume auto finds no checkpoint in " + options.output_dir + ": the run begins at its first step");
        }
        return newest;
    }
    if (options.resume.empty() || options.resume == "never") return {};
    const fs::path folder = options.resume;
    const std::string given = in_quotes(options.resume);
    require(fs::exists(folder), "--resume", given + ", which does not exist", "auto, never or a checkpoint's folder",
            "name a step_XXXXXXXX of an output folder");
    require(!is_partial_checkpoint(folder.has_filename() ? folder : folder.parent_path()), "--resume",
            given + ", not written to its end", "a whole checkpoint", "give a step_XXXXXXXX beside it, or auto");
    require(fs::is_directory(folder), "--resume", given + ", a file", "auto, never or a checkpoint's folder");
    if (!fs::exists(folder / kManifestName)) {
        require(step_folders(folder).empty(), "--resume", given + ", a run's folder", "a checkpoint in it",
                "name one of its step_XXXXXXXX, or give --output-dir " + options.resume + " --resume auto");
        require(!fs::exists(folder / "config.json"), "--resume", given + ", a model without a run's state",
                "a checkpoint that this program wrote to its end", "start a new run from it by --init");
    }
    check_and_show(folder);
    return folder;
}

}  // namespace

Found find_resumption(const Options& options, Communicator& communicator) {
    Found found;
    std::string name;
    on_first_rank(communicator, [&] { name = folder_of(options, found).string(); });
    const fs::path folder = communicator.host_gather(name)[0];
    if (!folder.empty())
        found.resumption = together(communicator, [&] {
            Resumption resumption{folder, read_trainer_state(folder)};
            const std::string name = folder.filename().string();
            const std::string state = step_folder({}, resumption.state.step).string();
            require(name.size() != state.size() || !name.starts_with("step_") || name == state,
                    "the step of " + folder.string(), resumption.state.step, "that of its name",
                    "give the folder its own name again");
            return resumption;
        });
    return found;
}

void make_way(const Found& found, const Options& options) {
    if (options.resume == "auto") {
        const auto now = step_folders(options.output_dir);
        const std::int64_t step = found.resumption ? found.resumption->state.step : -1;
        const bool newer = !now.empty() && now.rbegin()->first > step && !is_damaged(found, now.rbegin()->second);
        require(!newer, "--output-dir", '"' + options.output_dir + '"',
                "no newer checkpoint than the one found a moment ago", "another run has saved one since: start again");
    }
    for (const fs::path& folder : found.damaged) {
        const fs::path aside = free_name(folder.string() + ".damaged");
        std::error_code fault;
        fs::rename(folder, aside, fault);
        require(!fault, "moving aside " + folder.string(), fault.message(), "success", "move it yourself");
        note("moved to " + aside.string());
    }
    std::error_code none;
    for (const fs::path& folder : found.unfinished) fs::remove_all(folder, none);
}

bool appends_to_log(const Options& options, const Resumption* resumption) {
    if (options.resume == "auto") return true;
    std::error_code none;  // such as a folder that is not there yet
    return resumption && fs::equivalent(fs::canonical(resumption->folder).parent_path(), options.output_dir, none);
}

void require_free_names(const Found& found, const Options& options, std::int64_t last_step) {
    if (options.output_dir.empty()) return;
    const std::string given = in_quotes(options.output_dir);
    std::error_code fault;
    fs::directory_iterator(options.output_dir, fault);
    // No folder yet, or a file: the log is told.
    const bool readable = !fault || fault == std::errc::no_such_file_or_directory ||
                          fault == std::errc::not_a_directory;
    require(readable, "--output-dir", given, "a folder that can be read: " + fault.message(), "choose another folder");
    const Resumption* const resumption = found.resumption ? &*found.resumption : nullptr;
    const bool own = resumption && appends_to_log(options, resumption);
    for (const auto& [step, folder] : step_folders(options.output_dir)) {
        if (own ? step <= resumption->state.step : step > last_step) continue;
        if (is_damaged(found, folder)) continue;
        fail("--output-dir", given, "a folder without " + folder.filename().string() +
                                        (own ? ", behind the step that --resume goes on from"
                                             : ", where this run of " + counted(last_step, "step") +
                                                   " may save its model"),
             own ? "choose another folder for another way on, or move that one away"
                 : "go on with that run by --resume auto, choose another folder, or move that one away");
    }
}

Changes changes_since(const RunIdentity& before, const RunIdentity& now, bool new_data) {
    const auto require_same = [](const std::string& what, const std::string& then, const std::string& today) {
        require(then == today, what, today, then + ", as the run had that --resume goes on with",
                "give the same, or start a new run from its model by --init");
    };
    constexpr std::array kSame{"init", "seq-len", "seed", "shuffle", "pad-last", "mask-document-start",
                               "overfit-batch"};
    for (const char* const name : kSame)
        if (before.options.contains(name))
            require_same(std::string("--") + name, text_of(before.options[name]), text_of(now.options[name]));
    require(before.step_tokens == now.step_tokens, "the tokens of a step", now.step_tokens,
            std::to_string(before.step_tokens) + ", as the run had that --resume goes on with",
            "give --total-batch-tokens " + std::to_string(before.step_tokens) +
                ", and a --micro-batch that fits it and the ranks");
    // Deleted without a word they would be, by the first checkpoint.
    const auto number = [](const nlohmann::json& of, const char* name) { return of.value(name, std::int64_t(0)); };
    require(number(now.options, "keep-checkpoints") == 0 || number(before.options, "major-every") == 0 ||
                number(now.options, "major-every") != 0,
            "--major-every", 0, text_of(before.options["major-every"]) + ", as the run had that --resume goes on with: "
            "--keep-checkpoints would delete what it has kept", "give it again, or another one");
    Changes changes;
    for (std::size_t i = 0; i < std::max(before.training_data.size(), now.training_data.size()); ++i) {
        const auto text = [i](const std::vector<Fact>& facts) {
            return i < facts.size() ? facts[i].name + ' ' + facts[i].value : "nothing more";
        };
        const std::string then = text(before.training_data), today = text(now.training_data);
        changes.data = changes.data || then != today;
        if (!new_data)
            require(then == today, "the training data", today,
                    then + ", as the run had that --resume goes on with",
                    "give the same shards, or --allow-new-data to read these from their first row");
    }
    if (changes.data) changes.options.push_back("training data: other shards, read from their first row");
    // What scores are compared by: told, as another file may have the old one's name.
    const auto are_others = [](const std::vector<Fact>& then, const std::vector<Fact>& today) {
        const auto same = [](const Fact& a, const Fact& b) { return a.name == b.name && a.value == b.value; };
        return !then.empty() && !today.empty() && !std::ranges::equal(then, today, same);
    };
    if (are_others(before.validation_data, now.validation_data))
        changes.options.push_back("validation data: other shards");
    if (are_others(before.hellaswag, now.hellaswag)) changes.options.push_back("HellaSwag: other examples");

    constexpr std::array kNoMatter{"output-dir", "resume", "allow-new-data", "train-data", "val-data", "tune",
                                   "tune-file", "device", "threads", "log-every", "dry-run"};
    const auto compare = [&](const std::string& what, const std::string& then, const std::string& today) {
        if (then != today) changes.options.push_back(what + ' ' + then + " -> " + today);
    };
    compare("ranks", std::to_string(before.ranks), std::to_string(now.ranks));
    for (const auto& [name, value] : now.options.items())
        if (before.options.contains(name) && std::ranges::find(kNoMatter, name) == kNoMatter.end())
            compare("--" + name, text_of(before.options[name]), text_of(value));
    return changes;
}

}  // namespace llmc
