// device_host.cpp - device.h on a CPU
#include "kernels/device/device.h"

#include <malloc.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <latch>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/start_thread.h"
#include "kernels/device/available_memory.h"
#include "kernels/device/control_groups.h"

namespace device {
namespace {

// Chunks of 512 rows of 50304 floats: the head takes 5 % more time than with all 4096 rows at once, and 720 MB less.
constexpr std::size_t kLogitsBytes = std::size_t(104) << 20;

// Code and buffers of oneDNN and of communication, allocated on first use. Measured as a run's peak resident memory
// minus its plan and minus the memory of --dry-run, 25 M parameters: 13 MiB for one rank, 18 MiB for two.
constexpr std::size_t kLibraryBytes = std::size_t(16) << 20;

// Threads of a run that start later: for batches, checkpoints, and the communication between ranks.
constexpr std::size_t kLaterThreads = 4;

std::string processor_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
        if (line.starts_with("model name"))
            if (const auto colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
    return "n/a";
}

// libgomp ends the process, with a message that names no limit, if it cannot start a thread. So as many are started
// before.
void require_threads(int count) {
    std::latch release(1);
    std::vector<std::jthread> threads;
    try {
        while (int(threads.size()) < count - 1)
            threads.push_back(start_thread<std::jthread>([&] { release.wait(); }));
    } catch (...) {
        release.count_down();
        throw;
    }
    release.count_down();
}

// The number of threads that OpenMP starts when `requested` are requested: fewer where the environment sets a limit.
// oneDNN divides a product among omp_get_max_threads() threads and skips the part of a thread that does not start, so
// that number must be the actual one.
int available_threads(int requested) {
    omp_set_dynamic(0);  // otherwise the number may change from product to product
    require_threads(std::min(requested, omp_get_thread_limit()));
    int available = 1;
    #pragma omp parallel num_threads(requested)
    {
        #pragma omp single
        available = omp_get_num_threads();
    }
    return available;
}

}  // namespace

bool is_gpu() { return false; }

Info open(int threads, int index) {
    require(index == 0, "--device", index, "0: this build runs on the CPU",
            "omit the flag, or build with make DEVICE=cuda");
    Info info;
    info.kind = "cpu";
    info.name = processor_name();
    info.memory_total = std::size_t(sysconf(_SC_PHYS_PAGES)) * std::size_t(sysconf(_SC_PAGE_SIZE));
    info.memory_free = available_memory();
    info.library_bytes = kLibraryBytes;
    info.cache = std::size_t(std::max({0L, sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE)}));
    info.logits_bytes = kLogitsBytes;
    const bool limited = address_space_left() > 0;
    if (limited) mallopt(M_ARENA_MAX, 1);  // an arena for each thread would take up to 128 MiB of address space
    info.threads = available_threads(threads > 0 ? threads : usable_threads());
    require(threads <= info.threads, "--threads", threads, "at most the " + std::to_string(info.threads) +
            " that OpenMP allows", "check OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS");
    omp_set_num_threads(info.threads);
    if (limited) {
        info.memory_limit = address_space_left();
        info.stack_bytes = kLaterThreads * stack_bytes();
    }
    return info;
}

int count() { return 0; }

}  // namespace device
