// gpu_facts.h - what NVIDIA's management library (NVML) tells of a GPU while a run goes on: power, clocks, temperature,
// memory, utilisation, and what holds its clocks down
//
// The library is part of the driver and is looked for when a run asks for it: no build needs it, nor its header.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace llmc {

// Empty: this GPU or this driver does not tell it.
struct GpuFacts {
    std::optional<double> power_w, sm_mhz, memory_mhz, temperature_c, memory_used_bytes;
    std::optional<double> utilization;  // 0 to 1: the part of a time, by the driver, in which a kernel ran
    // by nvidia-smi's names; empty: nothing holds the clocks down
    std::optional<std::vector<std::string>> throttle_reasons;
};
nlohmann::ordered_json to_json(const GpuFacts& facts);

// The functions of the library that are called here, as its documentation declares them: 0, or why not.
struct Nvml {
    using Device = void*;
    using Clock = int;  // NVML_CLOCK_SM and NVML_CLOCK_MEM
    static constexpr Clock kClockSm = 1, kClockMemory = 2;
    using Sensor = int;
    static constexpr Sensor kSensorGpu = 0;
    struct Memory { unsigned long long total, free, used; };
    struct Utilization { unsigned gpu, memory; };  // percent

    std::function<int()> init, shutdown;
    std::function<const char*(int)> error_string;
    std::function<int(const char*, Device*)> device_by_uuid;
    // These a driver may lack: they are empty then.
    std::function<int(Device, unsigned*)> power_usage;  // milliwatts
    std::function<int(Device, Clock, unsigned*)> clock;  // MHz
    std::function<int(Device, Sensor, unsigned*)> temperature;  // degrees Celsius
    std::function<int(Device, Memory*)> memory;
    std::function<int(Device, Utilization*)> utilization;
    std::function<int(Device, unsigned long long*)> throttle_reasons;  // bits

    std::shared_ptr<void> library{};  // whose functions these are
};
// Throws Error where there is no such library.
Nvml open_nvml(const char* library = "libnvidia-ml.so.1");

// Reads one GPU once in a while, on a thread of its own: a reading may take milliseconds, which no step waits for.
class GpuWatch {
public:
    // `id`: device::Info's. The first reading is made at once. Throws Error where the library does not start or does
    // not know the GPU.
    GpuWatch(Nvml nvml, const std::string& id, std::chrono::milliseconds between = std::chrono::seconds(1));
    ~GpuWatch();
    GpuWatch(const GpuWatch&) = delete;
    GpuWatch& operator=(const GpuWatch&) = delete;

    // The last reading; does not wait for one that is under way.
    GpuFacts latest() const;

private:
    GpuFacts read() const;
    void watch();

    Nvml nvml_;
    Nvml::Device device_{};
    std::chrono::milliseconds between_;

    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable stopped_;
    GpuFacts latest_;
    bool stop_ = false;

    std::thread thread_;  // last: runs only when all the rest is there
};

// Null, and a note on standard error that says why, where `id` is no GPU's or NVML cannot be used.
std::unique_ptr<GpuWatch> watch_gpu(const std::string& id);

}  // namespace llmc
