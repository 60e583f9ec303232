// device_host.cpp - device.h where the device is the processor itself
#include "kernels/device/device.h"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "kernels/device/available_memory.h"
#include "kernels/device/error.h"

namespace device {
namespace {

// 512 rows of 50304 floats cost 5 % more head time than all 4096 rows at once, and save 720 MB.
constexpr std::size_t kLogitsBytes = std::size_t(104) << 20;

// oneDNN's code and buffers and those of communication, which come once they are used. The peak of a run's resident
// memory less its plan and what --dry-run takes, 25 M parameters: 13 MiB alone, 18 MiB with two ranks.
constexpr std::size_t kLibraryBytes = std::size_t(16) << 20;

std::string processor_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
        if (line.starts_with("model name"))
            if (const auto colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
    return "n/a";
}

int usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : int(sysconf(_SC_NPROCESSORS_ONLN));
}

// Of so many, fewer where the environment has a limit. oneDNN shares a product out over omp_get_max_threads() and
// leaves undone what is for a thread that it does not get: it must be the number that comes.
int threads_given(int wanted) {
    omp_set_dynamic(0);  // else it may change from product to product
    int given = 1;
    #pragma omp parallel num_threads(wanted)
    {
        #pragma omp single
        given = omp_get_num_threads();
    }
    return given;
}

}  // namespace

bool is_gpu() { return false; }

Info open(int threads, int index) {
    require(index == 0, "--device", index, "0: this build runs on the CPU",
            "leave the flag out, or build with make DEVICE=cuda");
    const int cores = usable_cores();
    Info info;
    info.kind = "cpu";
    info.name = processor_name();
    info.memory_total = std::size_t(sysconf(_SC_PHYS_PAGES)) * std::size_t(sysconf(_SC_PAGE_SIZE));
    info.memory_free = available_memory();
    info.memory_limit = address_space_left();
    info.library_bytes = kLibraryBytes;
    info.cache = std::size_t(std::max({0L, sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE)}));
    info.logits_bytes = kLogitsBytes;
    info.threads = threads_given(threads > 0 ? threads : cores);
    require(threads <= info.threads, "--threads", threads, "at most the " + std::to_string(info.threads) +
            " that OpenMP gives", "look at OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS");
    omp_set_num_threads(info.threads);
    return info;
}

int count() { return 0; }

}  // namespace device
