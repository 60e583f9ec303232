// device_cuda.cpp - device.h where the device is a GPU
#include "kernels/device/device.h"

#include <omp.h>
#include <sched.h>

#include <array>
#include <cstdio>
#include <span>

#include "kernels/device/checked_cuda.h"

namespace device {
namespace {

int usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::string hexadecimal(std::span<const char> bytes) {
    std::string text;
    for (const char byte : bytes) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
        text += digits;
    }
    return text;
}

// Dense peaks in FLOP/s from NVIDIA's data sheets: bf16 and TF32 on tensor cores with fp32 accumulation, fp32 on the
// CUDA cores.
struct Peak {
    const char* name;
    double bf16, tf32, fp32;
};
constexpr std::array kPeaks{
    Peak{"A100", 312e12, 156e12, 19.5e12},     Peak{"H100 PCIe", 756e12, 378e12, 51e12},
    Peak{"H100", 989.4e12, 494.7e12, 66.9e12}, Peak{"H200", 989.4e12, 494.7e12, 66.9e12},
    Peak{"L40S", 362e12, 183e12, 91.6e12},     Peak{"L4", 121e12, 60e12, 30.3e12},
    Peak{"A10", 125e12, 62.5e12, 31.2e12},     Peak{"RTX 4090", 165.2e12, 82.6e12, 82.6e12},
    Peak{"RTX 3090", 71e12, 35.6e12, 35.6e12},
};

void name_peaks(Info& info) {
    for (const Peak& peak : kPeaks)
        if (info.name.ends_with(peak.name) || info.name.find(std::string(peak.name) + " ") != std::string::npos ||
            info.name.find(std::string(peak.name) + "-") != std::string::npos) {
            info.peak_flops_bf16 = peak.bf16;
            info.peak_flops_tf32 = peak.tf32;
            info.peak_flops_fp32 = peak.fp32;
            return;
        }
}

}  // namespace

int count() {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;  // open() says why
}

Info open(int threads, int index) {
    int count = 0;
    if (const auto status = cudaGetDeviceCount(&count); status != cudaSuccess || count == 0) {
        cudaGetLastError();
        throw Error(
            std::string("no GPU can be used: ") +
            (status == cudaSuccess ? "the machine has none" : cudaGetErrorString(status)) +
            "; this build needs one with compute capability 8.0 or later; on this machine build with make DEVICE=cpu");
    }
    require(index >= 0 && index < count, "--device", index,
            "a number below the number of GPUs, " + std::to_string(count));
    CHECKED(cudaSetDevice(index));
    cudaDeviceProp properties{};
    CHECKED(cudaGetDeviceProperties(&properties, index));
    require(properties.major >= 8, "the compute capability of " + std::string(properties.name),
            std::to_string(properties.major) + "." + std::to_string(properties.minor), "8.0 or later");
    Info info;
    info.kind = "cuda";
    info.name = properties.name;
    info.cache = std::size_t(properties.l2CacheSize);
    info.id = "GPU-" + hexadecimal(properties.uuid.bytes);
    CHECKED(cudaMemGetInfo(&info.memory_free, &info.memory_total));
    info.logits_bytes = std::size_t(1) << 30;
    info.threads = threads > 0 ? threads : usable_cores();
    omp_set_num_threads(info.threads);
    name_peaks(info);
    return info;
}

}  // namespace device
