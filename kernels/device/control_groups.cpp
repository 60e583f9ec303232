// control_groups.cpp - reads /proc/self/cgroup, and the CPU quota of the groups that it names
#include "kernels/device/control_groups.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>

namespace device {

namespace fs = std::filesystem;

std::vector<ControlGroup> control_groups(const std::string& controller, const fs::path& root) {
    std::vector<ControlGroup> groups;
    // Lines of "hierarchy:controllers:path", such as 4:cpu,cpuacct:/job; version 2 has no controllers.
    std::ifstream lines(root / "proc/self/cgroup");
    for (std::string line; std::getline(lines, line);) {
        const auto first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = ',' + line.substr(first + 1, second - first - 1) + ',';
        const int version = controllers == ",," ? 2 : 1;
        if (version == 1 && controllers.find(',' + controller + ',') == std::string::npos) continue;
        const fs::path mount = root / "sys/fs/cgroup" / (version == 2 ? "" : controller);
        groups.push_back({mount, version});
        for (fs::path group = line.substr(second + 1); group.has_relative_path(); group = group.parent_path())
            groups.push_back({mount / group.relative_path(), version});
    }
    return groups;
}

int CpuQuota::threads(int rank, int ranks) const {
    const auto all = std::int64_t(std::ceil(std::min(cores, 1e6)));
    return int(std::max<std::int64_t>((rank + 1) * all / ranks - rank * all / ranks, 1));
}

CpuQuota cpu_quota(const fs::path& root) {
    CpuQuota smallest;
    for (const auto& [folder, version] : control_groups("cpu", root)) {
        double quota = 0, period = 0;  // without a limit the quota is "max", or in version 1 not positive
        std::ifstream file(folder / (version == 2 ? "cpu.max" : "cpu.cfs_quota_us"));
        file >> quota;
        if (version == 2) file >> period;
        else std::ifstream(folder / "cpu.cfs_period_us") >> period;
        if (quota > 0 && period > 0 && quota / period < smallest.cores) smallest = {quota / period, folder};
    }
    return smallest;
}

int usable_threads() {
    cpu_set_t set;
    CPU_ZERO(&set);
    const int all = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : int(sysconf(_SC_NPROCESSORS_ONLN));
    return std::max(std::min(all, cpu_quota().threads()), 1);
}

}  // namespace device
