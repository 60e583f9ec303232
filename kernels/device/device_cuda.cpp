// device_cuda.cpp - device.h on a GPU
#include "kernels/device/device.h"

#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <span>

#include "kernels/device/checked_cuda.h"
#include "kernels/device/control_groups.h"

namespace device {
namespace {

// CUDA loads a kernel (ours, cuBLASLt's or cuDNN's) at its first launch, after memory_free was read. This is a guess:
// compare memory_used_bytes of a log (--log-gpu) with the plan.
constexpr std::size_t kLibraryBytes = std::size_t(512) << 20;

std::string hexadecimal(std::span<const char> bytes) {
    std::string text;
    for (const char byte : bytes) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
        text += digits;
    }
    return text;
}

}  // namespace

bool is_gpu() { return true; }

int count() {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;  // open() reports the reason
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
    info.compute_capability = 10 * properties.major + properties.minor;
    info.cache = std::size_t(properties.l2CacheSize);
    info.id = "GPU-" + hexadecimal(properties.uuid.bytes);
    CHECKED(cudaMemGetInfo(&info.memory_free, &info.memory_total));
    info.library_bytes = kLibraryBytes;
    // With 105 GB: all 65,536 rows of GPT-2's vocabulary in bf16. A fraction of the total memory, not of the free
    // memory: the order of the gradient sums, and so their last bits, must not depend on other users of the GPU.
    info.logits_bytes = std::max(std::size_t(1) << 30, info.memory_total / 16);
    info.threads = threads > 0 ? threads : usable_threads();
    omp_set_num_threads(info.threads);
    info.peaks = peaks_of(info.name);
    return info;
}

}  // namespace device
