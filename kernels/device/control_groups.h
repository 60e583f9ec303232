// control_groups.h - the control groups of this process, and the cores that their CPU quota leaves it
#pragma once
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace device {

struct ControlGroup {
    std::filesystem::path folder;
    int version;  // 1 or 2
};
// The groups that may limit `controller`, such as "memory": that of this process and all its ancestors. In a container
// the path may be that of the host: only the upper part of it is then visible. `root` is the folder that holds /proc
// and /sys.
std::vector<ControlGroup> control_groups(const std::string& controller, const std::filesystem::path& root = "/");

struct CpuQuota {
    double cores = std::numeric_limits<double>::infinity();
    std::filesystem::path group{};  // whose quota it is; empty: there is none

    // Rounded up and divided among `ranks` processes: the threads of one of them, at least 1. Without a quota, many.
    int threads(int rank = 0, int ranks = 1) const;
};
// The smallest quota of the groups.
CpuQuota cpu_quota(const std::filesystem::path& root = "/");

// The hardware threads that this process may run on (its affinity), within its CPU quota.
int usable_threads();

}  // namespace device
