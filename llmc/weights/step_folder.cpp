// step_folder.cpp - writes and parses the names of checkpoints
#include "llmc/weights/step_folder.h"

#include <charconv>
#include <optional>
#include <string>

#include "llmc/base/file_status.h"
#include "llmc/base/number_text.h"

namespace llmc {

namespace fs = std::filesystem;

namespace {

// The step of "step_00000100"; nullopt: not the name of a step folder.
std::optional<std::int64_t> step_in(const std::string& name) {
    constexpr std::string_view kStep = "step_";
    std::uint32_t step = 0;  // unsigned, so that a sign is not parsed
    if (!name.starts_with(kStep)) return std::nullopt;
    const auto [rest, fault] = std::from_chars(name.data() + kStep.size(), name.data() + name.size(), step);
    if (fault != std::errc{} || *rest != 0 || step_folder("", step) != name) return std::nullopt;
    return step;
}

}  // namespace

fs::path step_folder(const fs::path& output_dir, std::int64_t step) {
    require(step >= 0, "the step of a checkpoint", step, "0 or more");
    return output_dir / format("step_%08lld", static_cast<long long>(step));
}

std::map<std::int64_t, fs::path> step_folders(const fs::path& output_dir) {
    std::map<std::int64_t, fs::path> folders;
    std::error_code fault;
    for (fs::directory_iterator entry(output_dir, fault), end; !fault && entry != end; entry.increment(fault))
        if (const auto step = step_in(entry->path().filename().string())) folders[*step] = entry->path();
    if (fault && !means_missing(fault.value())) fail_as_unreadable("the folder " + output_dir.string(), fault.value());
    return folders;
}

bool is_partial_checkpoint(const fs::path& folder) {
    constexpr std::string_view kEnd = ".partial";
    const std::string name = folder.filename().string();
    return name.starts_with('.') && name.ends_with(kEnd) && name.size() > kEnd.size() &&
           step_in(name.substr(1, name.size() - 1 - kEnd.size()));
}

}  // namespace llmc
