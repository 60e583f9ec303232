// device_cuda.cpp - device.h where the device is a GPU
#include <cuda_runtime.h>
#include <omp.h>
#include <sched.h>

#include <array>
#include <cstdio>
#include <memory>

#include "llmc/device.h"
#include "llmc/error.h"

namespace llmc {
namespace {

void check(cudaError_t status, const char* expression, const char* file, int line) {
    if (status == cudaSuccess) return;
    throw Error(std::string(file) + ":" + std::to_string(line) + ": " + expression + ": " + cudaGetErrorName(status) + ", " +
                cudaGetErrorString(status), Blame::runtime);
}
#define CUDA_CHECK(expression) check(expression, #expression, __FILE__, __LINE__)

bool passed(void* event) {
    const auto status = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (status == cudaErrorNotReady) return false;
    CUDA_CHECK(status);
    return true;
}

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

// Dense peaks in FLOP/s from NVIDIA's data sheets: bf16 and TF32 on tensor cores with fp32 accumulation, fp32 on the CUDA cores.
struct Peak {
    const char* name;
    double bf16, tf32, fp32;
};
constexpr std::array kPeaks{
    Peak{"A100", 312e12, 156e12, 19.5e12},   Peak{"H100 PCIe", 756e12, 378e12, 51e12}, Peak{"H100", 989.4e12, 494.7e12, 66.9e12},
    Peak{"H200", 989.4e12, 494.7e12, 66.9e12}, Peak{"L40S", 362e12, 183e12, 91.6e12},  Peak{"L4", 121e12, 60e12, 30.3e12},
    Peak{"A10", 125e12, 62.5e12, 31.2e12},   Peak{"RTX 4090", 165.2e12, 82.6e12, 82.6e12}, Peak{"RTX 3090", 71e12, 35.6e12, 35.6e12},
};

void name_peaks(DeviceInfo& info) {
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

int device_count() {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;  // open_device() says why
}

DeviceInfo open_device(int threads, int index) {
    int count = 0;
    if (const auto status = cudaGetDeviceCount(&count); status != cudaSuccess || count == 0) {
        cudaGetLastError();
        throw Error(std::string("no GPU can be used: ") + (status == cudaSuccess ? "the machine has none" : cudaGetErrorString(status)) +
                    "; this build needs one with compute capability 8.0 or later; on this machine build with make DEVICE=cpu");
    }
    require(index >= 0 && index < count, "--device", index, "a number below the number of GPUs, " + std::to_string(count));
    CUDA_CHECK(cudaSetDevice(index));
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
    require(properties.major >= 8, "the compute capability of " + std::string(properties.name),
            std::to_string(properties.major) + "." + std::to_string(properties.minor), "8.0 or later");
    DeviceInfo info;
    info.kind = "cuda";
    info.name = properties.name;
    info.cache = std::size_t(properties.l2CacheSize);
    info.id = "GPU-" + hexadecimal(properties.uuid.bytes);
    CUDA_CHECK(cudaMemGetInfo(&info.memory_free, &info.memory_total));
    info.threads = threads > 0 ? threads : usable_cores();
    omp_set_num_threads(info.threads);
    name_peaks(info);
    return info;
}

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    void* data = nullptr;
    if (cudaMalloc(&data, bytes) != cudaSuccess) {
        cudaGetLastError();
        fail("an allocation of device memory", bytes, "room for that many bytes", "make --micro-batch or --seq-len smaller", Blame::runtime);
    }
    data_ = static_cast<std::byte*>(data);
}
DeviceMemory::~DeviceMemory() { cudaFree(data_); }

DeviceStream::DeviceStream() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
DeviceStream::~DeviceStream() {
    if (stream_) cudaStreamDestroy(stream_);
}
void DeviceStream::wait() const { llmc::wait(stream_); }

DeviceEvent::DeviceEvent() {
    cudaEvent_t event = nullptr;
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    event_ = event;
}
DeviceEvent::~DeviceEvent() {
    if (event_) cudaEventDestroy(static_cast<cudaEvent_t>(event_));
}
void DeviceEvent::record(Stream stream) { CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(event_), stream)); }
bool DeviceEvent::reached() const { return passed(event_); }
void DeviceEvent::wait() const { CUDA_CHECK(cudaEventSynchronize(static_cast<cudaEvent_t>(event_))); }

DeviceTimer::DeviceTimer() {
    cudaEvent_t start = nullptr, stop = nullptr;
    CUDA_CHECK(cudaEventCreate(&start));
    start_ = start;
    CUDA_CHECK(cudaEventCreate(&stop));
    stop_ = stop;
}
DeviceTimer::~DeviceTimer() {
    if (start_) cudaEventDestroy(static_cast<cudaEvent_t>(start_));
    if (stop_) cudaEventDestroy(static_cast<cudaEvent_t>(stop_));
}
void DeviceTimer::start(Stream stream) { CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(start_), stream)); }
void DeviceTimer::stop(Stream stream) { CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(stop_), stream)); }
bool DeviceTimer::stopped() const { return passed(stop_); }
double DeviceTimer::seconds() const {
    CUDA_CHECK(cudaEventSynchronize(static_cast<cudaEvent_t>(stop_)));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(start_), static_cast<cudaEvent_t>(stop_)));
    return milliseconds * 1e-3;
}

void hold_until(Stream stream, const DeviceEvent& event) { CUDA_CHECK(cudaStreamWaitEvent(stream, static_cast<cudaEvent_t>(event.handle()), 0)); }
void call_on_host(Stream stream, std::function<void()> work) {
    auto call = std::make_unique<std::function<void()>>(std::move(work));
    const auto run = [](void* argument) { (*std::unique_ptr<std::function<void()>>(static_cast<std::function<void()>*>(argument)))(); };
    CUDA_CHECK(cudaLaunchHostFunc(stream, run, call.get()));
    call.release();  // `run` owns it now
}

HostMemory::HostMemory(std::size_t bytes) {
    void* data = nullptr;
    if (bytes) CUDA_CHECK(cudaMallocHost(&data, bytes));
    data_ = static_cast<std::byte*>(data);
}
HostMemory::~HostMemory() { cudaFreeHost(data_); }

void copy_to_device(void* device, const void* host, std::size_t bytes, Stream stream) {
    if (bytes) CUDA_CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
}
void copy_to_host(void* host, const void* device, std::size_t bytes, Stream stream) {
    if (bytes) CUDA_CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
}
void copy_on_device(void* to, const void* from, std::size_t bytes, Stream stream) {
    if (bytes) CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}
void fill_zero(void* device, std::size_t bytes, Stream stream) {
    if (bytes) CUDA_CHECK(cudaMemsetAsync(device, 0, bytes, stream));
}
void wait(Stream stream) { CUDA_CHECK(cudaStreamSynchronize(stream)); }
bool device_memory_is_host_memory() { return false; }
const void* on_host(const void* device, std::size_t bytes, std::vector<std::byte>& buffer, Stream stream) {
    buffer.resize(bytes);
    copy_to_host(buffer.data(), device, bytes, stream);
    wait(stream);
    return buffer.data();
}

}  // namespace llmc
