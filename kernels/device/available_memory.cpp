// available_memory.cpp - reads /proc/meminfo, the memory limits of control groups, and the process limits
#include "kernels/device/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "kernels/device/control_groups.h"

namespace device {
namespace {

namespace fs = std::filesystem;

// "No limit" is the word "max" in version 2, and a huge number in version 1.
struct MemoryFiles {
    const char *limit, *used, *cached;
};
constexpr MemoryFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr MemoryFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

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
std::size_t room_in(const ControlGroup& group) {
    const MemoryFiles& files = group.version == 2 ? kVersion2 : kVersion1;
    const auto limit = number_in(group.folder / files.limit), used = number_in(group.folder / files.used);
    if (!limit || !used) return std::numeric_limits<std::size_t>::max();
    const std::size_t cached = number_after(files.cached, group.folder / "memory.stat").value_or(0);
    return *limit - std::min(*limit, *used - std::min(*used, cached));
}

}  // namespace

std::size_t available_memory(const fs::path& root) {
    constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
    std::size_t room = kNone;
    for (const ControlGroup& group : control_groups("memory", root)) room = std::min(room, room_in(group));
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
