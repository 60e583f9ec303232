// available_memory_test.cpp - the available memory of a process in simulated machines and control groups
#include "kernels/device/available_memory.h"

#include <omp.h>

#include <cmath>

#include "kernels/device/control_groups.h"

#include "test/support/scratch_folder.h"

namespace {

constexpr std::size_t kGiB = std::size_t(1) << 30;

// A root folder with simulated /proc and /sys. Sizes are in GiB.
class Machine {
public:
    explicit Machine(std::size_t available) {
        write("proc/meminfo", "MemTotal:       99 kB\nMemAvailable:   " + std::to_string(available << 20) + " kB\n");
    }
    void write(const std::string& file, const std::string& text) const {
        std::filesystem::create_directories((folder_ / file).parent_path());
        test::write_bytes(folder_ / file, text);
    }
    // `limit`: a number of GiB, or the word for "no limit".
    void group2(const std::string& path, const std::string& limit, std::size_t used, std::size_t inactive) const {
        const std::string folder = "sys/fs/cgroup" + path + "/";
        write(folder + "memory.max", (limit == "max" ? limit : std::to_string(std::stoul(limit) * kGiB)) + "\n");
        write(folder + "memory.current", std::to_string(used * kGiB) + "\n");
        write(folder + "memory.stat", "anon 5\ninactive_anon 7\nactive_file 9\ninactive_file " +
                                          std::to_string(inactive * kGiB) + "\n");
    }
    void group1(const std::string& path, std::size_t limit, std::size_t used, std::size_t inactive) const {
        const std::string folder = "sys/fs/cgroup/memory" + path + "/";
        write(folder + "memory.limit_in_bytes", std::to_string(limit) + "\n");
        write(folder + "memory.usage_in_bytes", std::to_string(used * kGiB) + "\n");
        write(folder + "memory.stat", "inactive_file 3\ntotal_inactive_file " + std::to_string(inactive * kGiB) + "\n");
    }
    void cpu(const std::string& path, const std::string& max) const {
        write("sys/fs/cgroup" + path + "/cpu.max", max + "\n");
    }
    double cores() const { return device::cpu_quota(folder_.path()).cores; }
    std::size_t room() const { return device::available_memory(folder_.path()) / kGiB; }

private:
    test::ScratchFolder folder_;
};

}  // namespace

TEST_CASE("without control groups MemAvailable is used, and without it the result is unknown", "[available_memory]") {
    CHECK(Machine(12).room() == 12);
    const test::ScratchFolder empty;
    CHECK(device::available_memory(empty.path()) == 0);
    CHECK(device::available_memory() > 0);  // of this machine
}

TEST_CASE("the address space limit minus the mapped memory is left", "[available_memory]") {
    const test::ScratchFolder root;
    const auto left = [&](const std::string& limit) {
        std::filesystem::create_directories(root.path() / "proc/self");
        test::write_bytes(root.path() / "proc/self/limits",
                          "Limit                     Soft Limit           Hard Limit           Units     \n"
                          "Max processes             31                   31                   processes \n"
                          "Max address space         " + limit + "              unlimited            bytes     \n");
        test::write_bytes(root.path() / "proc/self/status", "Name:\tx\nVmPeak:\t 9999 kB\nVmSize:\t 100 kB\n");
        return device::address_space_left(root.path());
    };
    CHECK(left("1024000") == 1024000 - 102400);
    CHECK(left("102400") == 1);
    CHECK(left("unlimited") == 0);
    CHECK(device::address_space_left(root.path() / "none") == 0);
}

TEST_CASE("inactive cached files count as available in a control group", "[available_memory]") {
    const Machine machine(64);
    machine.write("proc/self/cgroup", "0::/\n");
    machine.group2("", "16", 15, 9);
    CHECK(machine.room() == 10);
    machine.group2("", "16", 20, 1);  // more than the limit
    CHECK(machine.room() == 0);
    machine.group2("", "16", 2, 5);  // the kernel updates the two numbers at different times
    CHECK(machine.room() == 16);
    machine.group2("", "max", 2, 0);
    CHECK(machine.room() == 64);
}

TEST_CASE("the minimum over a group and its ancestors is used", "[available_memory]") {
    const Machine machine(64);
    machine.write("proc/self/cgroup", "1:name=systemd:/else\n0::/user.slice/job/step\n");
    machine.group2("/user.slice/job/step", "32", 2, 0);
    CHECK(machine.room() == 30);
    machine.group2("/user.slice/job", "24", 20, 4);
    CHECK(machine.room() == 8);
    machine.group2("/user.slice", "max", 50, 0);
    machine.group2("", "5", 0, 0);
    CHECK(machine.room() == 5);
    machine.group2("/user.slice/job/other", "1", 1, 0);  // not an ancestor
    CHECK(machine.room() == 5);
}

TEST_CASE("limits of version 1 are used, also together with version 2 and in a container", "[available_memory]") {
    const Machine machine(64);
    machine.write("proc/self/cgroup", "4:cpu,memory:/batch/job_7\n3:memory_other:/x\n0::/\n");
    machine.group1("/batch/job_7", 20 * kGiB, 12, 4);
    machine.group1("/batch", 40 * kGiB, 39, 0);
    machine.group1("/x", 1, 0, 0);
    CHECK(machine.room() == 1);
    machine.group1("/batch", 9223372036854771712u, 39, 0);  // no limit
    CHECK(machine.room() == 12);
    // The path is that of the host; the mounted hierarchy starts at the container.
    machine.write("proc/self/cgroup", "4:memory:/docker/0123/unseen\n");
    machine.group1("", 8 * kGiB, 5, 0);
    CHECK(machine.room() == 3);
}

TEST_CASE("the smallest CPU quota of a group and its ancestors is that of the threads", "[available_memory]") {
    const Machine machine(64);
    CHECK(std::isinf(machine.cores()));
    machine.write("proc/self/cgroup", "0::/pod/job\n");
    machine.cpu("/pod/job", "max 100000");
    CHECK(std::isinf(machine.cores()));
    machine.cpu("/pod", "250000 100000");
    CHECK(machine.cores() == 2.5);
    machine.cpu("/pod/job", "30000 20000");
    CHECK(machine.cores() == 1.5);
    machine.cpu("/pod/other", "1000 100000");  // not an ancestor
    machine.cpu("", "5000 10000");
    CHECK(machine.cores() == 0.5);
    // Version 1, in a container whose path is that of the host.
    machine.write("proc/self/cgroup", "4:cpu,cpuacct:/docker/0123\n3:cpuset:/\n");
    for (const auto& [quota, cores] : {std::pair("-1", INFINITY), {"0", INFINITY}, {"300000", 3.0f}}) {
        machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota);
        machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
        CHECK(machine.cores() == cores);
    }
    const auto threads = [](double cores, int rank, int ranks) {
        return device::CpuQuota{cores}.threads(rank, ranks);
    };
    CHECK((threads(0.1, 0, 1) == 1 && threads(1, 0, 1) == 1 && threads(1.1, 0, 1) == 2 && threads(2.5, 0, 1) == 3));
    CHECK((threads(2.5, 0, 2) == 1 && threads(2.5, 1, 2) == 2));  // together no more than the quota
    CHECK((threads(1, 0, 2) == 1 && threads(1, 1, 2) == 1));
    CHECK(device::usable_threads() == std::min<double>(omp_get_num_procs(), std::ceil(device::cpu_quota().cores)));
}
