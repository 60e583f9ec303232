// resume.cpp - the search for a whole checkpoint, and the comparison of two runs
#include "llmc/run/resume.h"

#include <algorithm>
#include <array>
#include <iostream>
#include <ranges>

#include "llmc/base/json_text.h"
#include "llmc/weights/checkpoint.h"
#include "llmc/weights/manifest.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void note(const std::string& text) { std::cerr << "note: " << text << std::endl; }

// Frees a name that the run will need, and loses nothing.
void move_aside(const fs::path& folder) {
    for (int number = 1;; ++number) {
        const fs::path aside = folder.string() + ".damaged" + (number > 1 ? std::to_string(number) : "");
        if (fs::exists(fs::symlink_status(aside))) continue;
        std::error_code fault;
        fs::rename(folder, aside, fault);
        if (fault) fail("moving aside " + folder.string(), fault.message(), "success", "move it yourself");
        note("moved to " + aside.string());
        return;
    }
}

// The newest whole one; empty: there is none at all.
fs::path newest_whole(const Options& options) {
    std::vector<fs::path> damaged;
    fs::path whole;
    for (const fs::path& folder : step_folders(options.output_dir) | std::views::values | std::views::reverse) {
        try {
            check_manifest(folder);
            whole = folder;
            break;
        } catch (const Error& error) {
            note("--resume auto passes over " + folder.string() + ": " + error.what());
            damaged.push_back(folder);
        }
    }
    require(!whole.empty() || damaged.empty(), "--resume", "auto", "a whole checkpoint in " + options.output_dir,
            "restore one, or start anew in another --output-dir");
    std::error_code none;
    for (fs::directory_iterator entry(options.output_dir, none), end; !none && entry != end; entry.increment(none)) {
        const std::string name = entry->path().filename().string();
        if (!name.starts_with(".step_") || !name.ends_with(".partial")) continue;
        note("--resume auto passes over " + entry->path().string() + ": not written to its end");
        if (!options.dry_run) fs::remove_all(entry->path(), none);
    }
    if (!options.dry_run) std::ranges::for_each(damaged, move_aside);
    return whole;
}

// What --resume names, on rank 0.
fs::path folder_of(const Options& options) {
    if (options.resume == "auto") return newest_whole(options);
    if (!options.resume.empty() && options.resume != "never") {
        require(fs::is_directory(options.resume), "--resume", '"' + options.resume + '"',
                "auto, never or a checkpoint's folder");
        check_manifest(options.resume);
        return options.resume;
    }
    return {};
}

}  // namespace

std::optional<Resumption> find_resumption(const Options& options, Communicator& communicator) {
    std::string found;
    on_first_rank(communicator, [&] { found = folder_of(options).string(); });
    const fs::path folder = communicator.host_gather(found)[0];
    if (folder.empty()) return std::nullopt;
    return together(communicator, [&] { return Resumption{folder, read_trainer_state(folder)}; });
}

Changes changes_since(const TrainerState& before, const Options& options, const RunIdentity& now) {
    const auto require_same = [](const std::string& what, const std::string& then, const std::string& today) {
        require(then == today, what, today, then + ", as the run had that --resume goes on with",
                "give the same, or start a new run from its model by --init");
    };
    const json flags = to_json(options);
    constexpr std::array kSame{"init", "seq-len", "seed", "shuffle", "pad-last", "mask-document-start",
                               "overfit-batch"};
    for (const char* const name : kSame)
        if (before.options.contains(name))
            require_same(std::string("--") + name, text_of(before.options[name]), text_of(flags[name]));
    require_same("tokens of a step (--total-batch-tokens)", std::to_string(before.step_tokens),
                 std::to_string(now.step_tokens));
    const auto facts_of = [](const std::vector<Fact>& facts) {
        std::string text;
        for (const Fact& fact : facts) text.append(text.empty() ? "" : "; ").append(fact.name + ' ' + fact.value);
        return text;
    };
    Changes changes{.data = facts_of(before.training_data) != facts_of(now.training_data)};
    if (!options.allow_new_data)
        for (std::size_t i = 0; changes.data; ++i)  // the number of shards is the first fact
            require_same(now.training_data.at(i).name, before.training_data.at(i).value, now.training_data[i].value);

    constexpr std::array kNoMatter{"output-dir", "resume", "allow-new-data", "train-data", "val-data", "tune",
                                   "tune-file", "device", "threads", "dry-run"};
    const auto compare = [&](const std::string& what, const std::string& then, const std::string& today) {
        if (then != today) changes.options.push_back(what + ' ' + then + " -> " + today);
    };
    compare("ranks", std::to_string(before.ranks), std::to_string(now.ranks));
    for (const auto& [name, value] : flags.items())
        if (before.options.contains(name) && std::ranges::find(kNoMatter, name) == kNoMatter.end())
            compare("--" + name, text_of(before.options[name]), text_of(value));
    return changes;
}

bool appends_to_log(const Options& options, const Resumption* resumption) {
    if (options.resume == "auto") return true;
    std::error_code none;  // such as a folder that is not there yet
    return resumption && fs::equivalent(fs::absolute(resumption->folder).parent_path(), options.output_dir, none);
}

}  // namespace llmc
