// device.h - the device this build is for: device_host.cpp | device_cuda.cpp
#pragma once
#include <cstddef>
#include <optional>
#include <string>

#include "kernels/device/peaks.h"

namespace device {

struct Info {
    std::string kind;            // "cpu" or "cuda"
    std::string name;            // the model name that the driver or /proc/cpuinfo reports
    int compute_capability = 0;  // of a GPU, 10 * major + minor
    std::string id;              // a GPU's unique id (UUID); empty: a CPU
    std::size_t memory_total = 0, memory_free = 0;  // bytes; 0: unknown
    std::size_t memory_limit = 0;  // bytes that this process may allocate at most; 0: no limit
    // Bytes that are free and that this process may allocate; 0: unknown.
    std::size_t memory_available() const {
        return memory_limit > 0 && memory_limit < memory_free ? memory_limit : memory_free;
    }
    std::size_t stack_bytes = 0;   // address space of the threads that start later; 0: not limited
    std::size_t library_bytes = 0;  // memory that the libraries load and allocate on first use
    std::size_t cache = 0;       // bytes of the last-level cache; 0: unknown
    int threads = 1;             // CPU threads in use
    std::size_t logits_bytes = 0;  // recommended size of the head's logits buffer
    std::optional<Peaks> peaks;  // empty: unknown
};

// Selects the device of this process and the number of CPU threads. Throws Error if the machine does not have it.
Info open(int threads, int index = 0);  // threads <= 0: every core that this process may use; index: GPU index

// Whether this build runs its kernels on a GPU.
bool is_gpu();

// GPUs that this process may use; 0 in a build for CPUs.
int count();

}  // namespace device
