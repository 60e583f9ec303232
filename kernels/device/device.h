// device.h - the device this build is for: device_host.cpp | device_cuda.cpp
#pragma once
#include <cstddef>
#include <optional>
#include <string>

namespace device {

struct Info {
    std::string kind;            // "cpu" or "cuda"
    std::string name;            // as the machine calls itself
    std::string id;              // of a GPU: no other one has it; empty: a CPU
    std::size_t memory_total = 0, memory_free = 0;  // bytes; 0: unknown
    std::size_t memory_limit = 0;  // of this memory, what this process may take whatever others do; 0: no limit
    // Of what is free what this process may take; 0: unknown.
    std::size_t memory_available() const {
        return memory_limit > 0 && memory_limit < memory_free ? memory_limit : memory_free;
    }
    std::size_t library_bytes = 0;  // of this memory, for what the libraries load and allocate once they are used
    std::size_t cache = 0;       // bytes of the last cache before memory; 0: unknown
    int threads = 1;             // CPU threads in use
    std::size_t logits_bytes = 0;  // of the head's logits that are best held at once
    // dense, from the vendor's data sheet; empty: unknown
    std::optional<double> peak_flops_bf16, peak_flops_tf32, peak_flops_fp32;
};

// Chooses the device of this process and the number of CPU threads. Throws Error where the machine has no such device.
Info open(int threads, int index = 0);  // threads <= 0: every core this process may use; index: which of several GPUs

// Whether this is a build for GPUs, kernels included.
bool is_gpu();

// GPUs that this process may use; 0 in a build for CPUs.
int count();

}  // namespace device
