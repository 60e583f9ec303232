// placement.cpp - binds ranks to cores, assigns GPUs, and selects NCCL or MPI
#include "llmc/comm/placement.h"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/error.h"
#include "kernels/device/control_groups.h"
#include "llmc/comm/agreement.h"

namespace llmc {
namespace {

constexpr int kMaxThreads = 8192;  // Linux's limit of CPUs per machine

// A set of hardware threads; a single cpu_set_t holds only 1024.
struct AffinityMask {
    std::vector<cpu_set_t> sets = std::vector<cpu_set_t>(kMaxThreads / CPU_SETSIZE);
    std::size_t bytes() const { return sets.size() * sizeof(cpu_set_t); }
};

std::vector<int> affinity() {
    AffinityMask mask;
    std::vector<int> threads;
    if (sched_getaffinity(0, mask.bytes(), mask.sets.data()) != 0) return threads;
    for (int thread = 0; thread < kMaxThreads; ++thread)
        if (CPU_ISSET_S(thread, mask.bytes(), mask.sets.data())) threads.push_back(thread);
    return threads;
}

// Best effort: a rank that cannot be bound still computes. The kernel ignores threads that the machine or the container
// does not have.
void bind_to(const std::vector<int>& threads) {
    AffinityMask mask;
    for (const int thread : threads) CPU_SET_S(thread, mask.bytes(), mask.sets.data());
    sched_setaffinity(0, mask.bytes(), mask.sets.data());
}

// Open MPI 4 sets one variable if it bound the process, and one if the user set a policy. Open MPI 5 sets neither:
// ranks on the machine of mpirun, which is their parent, read its command line; those on other machines stay bound.
bool bound_by_default() {
    if (std::getenv("OMPI_MCA_orte_bound_at_launch")) return !std::getenv("OMPI_MCA_hwloc_base_binding_policy");
    if (std::getenv("PRTE_MCA_hwloc_default_binding_policy")) return false;
    std::ifstream launcher("/proc/" + std::to_string(getppid()) + "/cmdline");
    std::string word;
    std::getline(launcher, word, '\0');
    if (!word.ends_with("prterun")) return false;
    while (std::getline(launcher, word, '\0'))
        for (const char* asked : {"-bind-to", "-cpu-set", "-cpu-list"})
            if (word.ends_with(asked)) return false;
    return true;
}

int number_in_file(const std::string& path, int otherwise) {
    std::ifstream file(path);
    int number;
    return file >> number ? number : otherwise;
}

// With the boot id: containers on different machines may have the same host name.
std::string machine() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    return host_name() + ' ' + boot;
}

// Binds this process to its share of the machine's cores, unless it runs more threads than those have.
void share_cores(Communicator& communicator, int threads) {
    if (bound_by_default()) {
        std::vector<int> all(kMaxThreads);
        for (int thread = 0; thread < kMaxThreads; ++thread) all[std::size_t(thread)] = thread;
        bind_to(all);
    }
    if (communicator.size() == 1) return;
    const auto places = gather_json(communicator, {{"machine", machine()}, {"threads", affinity()}});
    std::vector<std::vector<int>> usable;
    int local_rank = 0;
    for (int rank = 0; rank < communicator.size(); ++rank) {
        const nlohmann::json& place = places[std::size_t(rank)];
        if (place["machine"] != places[std::size_t(communicator.rank())]["machine"]) continue;
        if (rank == communicator.rank()) local_rank = int(usable.size());
        usable.push_back(place["threads"].get<std::vector<int>>());
    }
    if (const auto mine = share_of_threads(usable, local_rank); threads <= int(mine.size())) bind_to(mine);
}

// This rank's threads of the CPU quota that it shares with the ranks of its control group.
int part_of_quota(Communicator& communicator) {
    const device::CpuQuota quota = device::cpu_quota();
    const auto groups = communicator.host_gather(quota.group.string() + " in " + machine());
    const auto mine = groups.begin() + communicator.rank();
    return quota.threads(int(std::count(groups.begin(), mine, *mine)),
                         int(std::count(groups.begin(), groups.end(), *mine)));
}

}  // namespace

std::vector<Core> cores_of(const std::vector<int>& threads) {
    std::map<std::pair<int, int>, Core> cores;  // by package and first thread
    for (const int thread : threads) {
        const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(thread) + "/topology/";
        const int package = number_in_file(topology + "physical_package_id", 0);
        const int first_sibling = number_in_file(topology + "thread_siblings_list", thread);  // "0,64" or "0-1"
        cores[{package, first_sibling}].push_back(thread);
    }
    std::vector<Core> ordered;
    for (auto& [place, core] : cores) ordered.push_back(std::move(core));
    return ordered;
}

std::vector<int> share_of_cores(const std::vector<Core>& cores, int local_rank, int local_ranks) {
    require(local_rank >= 0 && local_rank < local_ranks, "the rank on this machine", local_rank,
            "one from 0 to the number of ranks there - 1");
    std::vector<int> mine;
    const std::size_t count = cores.size(), rank = std::size_t(local_rank), ranks = std::size_t(local_ranks);
    if (count == 0) return mine;
    const std::size_t first = rank * count / ranks, end = std::max(first + 1, (rank + 1) * count / ranks);
    for (std::size_t core = first; core < end; ++core) mine.insert(mine.end(), cores[core].begin(), cores[core].end());
    return mine;
}

std::vector<int> share_of_threads(const std::vector<std::vector<int>>& usable, int local_rank) {
    std::set<int> together;
    std::size_t total = 0;
    for (const auto& threads : usable) {
        together.insert(threads.begin(), threads.end());
        total += threads.size();
    }
    if (total == together.size()) return usable[std::size_t(local_rank)];
    return share_of_cores(cores_of({together.begin(), together.end()}), local_rank, int(usable.size()));
}

int gpu_of_rank(int device, int local_rank, int gpus) {
    // A launcher that assigns one GPU per rank makes only that GPU visible.
    return device >= gpus || gpus == 0 ? device : (device + local_rank) % gpus;
}

bool uses_nccl(Transport requested, const std::vector<std::string>& gpus, const std::string& lacks) {
    if (requested == Transport::nccl && !lacks.empty())
        fail("--comm", "nccl", "auto or mpi: this build lacks " + lacks,
             "build with DEVICE=cuda and NCCL_ROOT set, or leave --comm out");
    if (requested == Transport::mpi || (gpus.size() == 1 && requested != Transport::nccl)) return false;
    std::map<std::string, int> ranks_of;
    for (const std::string& gpu : gpus)
        if (!gpu.empty() && ++ranks_of[gpu] > 1)
            fail("a GPU", "shared by ranks: " + gpu, "one GPU per rank, starting with --device",
                 "start fewer ranks on that host, or add --comm mpi, which lets them share it");
    return requested == Transport::nccl || (!gpus[0].empty() && lacks.empty());
}

// NCCL's buffers: channels of 4 MiB (NCCL_BUFFSIZE) for each neighbour and protocol. An estimate, like kLibraryBytes in
// device_cuda.cpp.
constexpr std::size_t kNcclBytes = std::size_t(512) << 20;

Placement place_rank(Communicator& communicator, const PlacementSettings& settings) {
    auto threads = int(settings.threads);
    share_cores(communicator, threads);
    const int within = part_of_quota(communicator);
    if (threads == 0 && within < std::ssize(affinity())) threads = std::min(within, omp_get_thread_limit());
    device::Info opened = together(communicator, [&] {
        return device::open(threads, gpu_of_rank(int(settings.device), communicator.local_rank(), device::count()));
    });
    // The ranks that share a GPU, or on CPUs a machine, share its free memory.
    const auto memories = communicator.host_gather(opened.id + " in " + machine());
    opened.memory_free /= std::size_t(std::count(memories.begin(), memories.end(),
                                                 memories[std::size_t(communicator.rank())]));
    opened.memory_free = opened.memory_available();
    const auto gpus = opened.id.empty() ? std::vector<std::string>(memories.size()) : memories;
    const bool nccl = together(communicator, [&] { return uses_nccl(settings.comm, gpus, why_no_nccl()); });
    if (nccl) opened.library_bytes += kNcclBytes;
    return {std::move(opened), nccl};
}

void add_options(OptionList& list, PlacementSettings& s) {
    list.group("Data parallelism");
    list.entry("comm", s.comm, "collectives backend; auto: nccl if every rank has its own GPU, else mpi", kTransports);
    list.group("Machine");
    list.entry("threads", s.threads,
        "CPU threads per rank; 0: one per hardware thread of the rank's cores, within its control group's CPU quota",
        Whole{0, 1024}, OnRanks::of_the_host);
    list.entry("device", s.device, "index of the first GPU; the ranks of a host use this one and the following ones",
        Whole{0, 1023}, OnRanks::of_the_host);
}

}  // namespace llmc
