// available_memory.cpp - reads /proc/meminfo, the control groups that /proc/self/cgroup names, and the process limits
#include "kernels/device/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace device {
namespace {

namespace fs = std::filesystem;

// File names of one cgroup version. "No limit" is the word "max" in version 2, and a huge number in version 1.
struct Version {
    const char *mount, *limit, *used, *cached;
};
constexpr Version kVersion1{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                            "total_inactive_file"};
constexpr Version kVersion2{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

std::optional<std::size_t> number_in(const fs::path& file) {
    std::ifstream in(file);
    std::size_t number = 0;
    return in >> number ? std::optional(number) : std::nullopt;
}

// The number that follows the word `name`, such as "MemAvailable:".
std::optional<std::size_t> number_after(const std::string& name, const fs::path& file) {
    std::ifstream in(file);
    std::size_t number = 0;
    for (std::string word; in >> word;)
        if (word == name && in >> number) return number;
    return std::nullopt;
}

// Bytes that one group may still use.
std::size_t room_in(const fs::path& group, const Version& version) {
    const auto limit = number_in(group / version.limit), used = number_in(group / version.used);
    if (!limit || !used) return std::numeric_limits<std::size_t>::max();
    const std::size_t cached = number_after(version.cached, group / "memory.stat").value_or(0);
    return *limit - std::min(*limit, *used - std::min(*used, cached));
}

// The minimum over the group and all its ancestors. In a container the path may be that of the host: only the upper
// part of it is then visible.
std::size_t room_up_from(const fs::path& mount, fs::path group, const Version& version) {
    std::size_t room = room_in(mount, version);
    for (; group.has_relative_path(); group = group.parent_path())
        room = std::min(room, room_in(mount / group.relative_path(), version));
    return room;
}

bool names_memory(const std::string& controllers) {  // "cpu,memory"
    return (',' + controllers + ',').find(",memory,") != std::string::npos;
}

}  // namespace

std::size_t available_memory(const fs::path& root) {
    constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
    std::size_t room = kNone;
    // Lines of "hierarchy:controllers:path"; version 2 has hierarchy 0 and no controllers.
    std::ifstream groups(root / "proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        const auto first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
        if (names_memory(controllers)) room = std::min(room, room_up_from(root / kVersion1.mount, path, kVersion1));
        else if (controllers.empty()) room = std::min(room, room_up_from(root / kVersion2.mount, path, kVersion2));
    }
    if (const auto free = number_after("MemAvailable:", root / "proc/meminfo")) room = std::min(room, *free * 1024);
    return room == kNone ? 0 : room;
}

std::size_t address_space_left(const fs::path& root) {
    constexpr std::string_view kName = "Max address space";
    std::ifstream limits(root / "proc/self/limits");
    for (std::string line; std::getline(limits, line);) {
        if (!line.starts_with(kName)) continue;
        std::istringstream numbers(line.substr(kName.size()));
        std::size_t limit = 0;
        if (!(numbers >> limit)) break;  // "unlimited"
        const std::size_t used = 1024 * number_after("VmSize:", root / "proc/self/status").value_or(0);
        return limit > used ? limit - used : 1;
    }
    return 0;
}

}  // namespace device
