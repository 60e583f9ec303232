// device_cpu.cpp - device.h where the device is the processor itself
#include <omp.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "llmc/device.h"
#include "llmc/error.h"

namespace llmc {
namespace {

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

// What the kernel believes can be had without swapping, and within the limit of a container where there is one. 0: unknown.
std::size_t available_memory() {
    std::size_t available = 0;
    std::ifstream info("/proc/meminfo");
    for (std::string word; info >> word;)
        if (std::size_t kib; word == "MemAvailable:" && info >> kib) available = kib * 1024;
    std::ifstream most("/sys/fs/cgroup/memory.max"), used("/sys/fs/cgroup/memory.current");
    if (std::size_t limit, current; most >> limit && used >> current) available = std::min(available, limit - std::min(limit, current));
    return available;
}

constexpr std::size_t kHugePage = std::size_t(2) << 20;

}  // namespace

DeviceInfo open_device(int threads, int index) {
    require(index == 0, "--device", index, "0: this build runs on the CPU", "leave the flag out, or build with make DEVICE=cuda");
    const int cores = usable_cores();
    DeviceInfo info;
    info.kind = "cpu";
    info.name = processor_name();
    info.memory_total = std::size_t(sysconf(_SC_PHYS_PAGES)) * std::size_t(sysconf(_SC_PAGE_SIZE));
    info.memory_free = available_memory();
    info.cache = std::size_t(std::max({0L, sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE)}));
    info.threads = threads > 0 ? threads : cores;
    omp_set_num_threads(info.threads);
    return info;
}

int device_count() { return 0; }

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    // Large arrays on huge pages: a step walks through all of them, and small pages would miss the TLB all the way.
    const std::size_t alignment = bytes >= 4 * kHugePage ? kHugePage : kernels::kTensorAlignment;
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    data_ = rounded >= bytes ? static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)) : nullptr;
    if (!data_) fail("an allocation of device memory", bytes, "room for that many bytes", "make --micro-batch or --seq-len smaller", Blame::runtime);
    if (alignment == kHugePage) madvise(data_, rounded, MADV_HUGEPAGE);
}
DeviceMemory::~DeviceMemory() { std::free(data_); }

DeviceStream::DeviceStream() = default;
DeviceStream::~DeviceStream() = default;
void DeviceStream::wait() const {}

DeviceEvent::DeviceEvent() = default;
DeviceEvent::~DeviceEvent() = default;
void DeviceEvent::record(Stream) {}
bool DeviceEvent::reached() const { return true; }
void DeviceEvent::wait() const {}

DeviceTimer::DeviceTimer() = default;
DeviceTimer::~DeviceTimer() = default;
void DeviceTimer::start(Stream) { start_seconds_ = omp_get_wtime(); }
void DeviceTimer::stop(Stream) { stop_seconds_ = omp_get_wtime(); }
bool DeviceTimer::stopped() const { return true; }
double DeviceTimer::seconds() const { return stop_seconds_ - start_seconds_; }

void hold_until(Stream, const DeviceEvent&) {}
void call_on_host(Stream, std::function<void()> work) { work(); }

HostMemory::HostMemory(std::size_t bytes) : data_(static_cast<std::byte*>(std::malloc(bytes))) {
    if (bytes && !data_) fail("an allocation of host memory", bytes, "room for that many bytes", {}, Blame::runtime);
}
HostMemory::~HostMemory() { std::free(data_); }

void copy_to_device(void* device, const void* host, std::size_t bytes, Stream) {
    if (bytes) std::memcpy(device, host, bytes);
}
void copy_to_host(void* host, const void* device, std::size_t bytes, Stream) {
    if (bytes) std::memcpy(host, device, bytes);
}
void copy_on_device(void* to, const void* from, std::size_t bytes, Stream) {
    constexpr std::size_t kPiece = std::size_t(1) << 20;
    #pragma omp parallel for
    for (std::size_t first = 0; first < bytes; first += kPiece)
        std::memcpy(static_cast<std::byte*>(to) + first, static_cast<const std::byte*>(from) + first, std::min(kPiece, bytes - first));
}
void fill_zero(void* device, std::size_t bytes, Stream) {
    if (bytes) std::memset(device, 0, bytes);
}
void wait(Stream) {}
bool device_memory_is_host_memory() { return true; }
const void* on_host(const void* device, std::size_t, std::vector<std::byte>&, Stream) { return device; }

}  // namespace llmc
