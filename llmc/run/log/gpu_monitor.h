// gpu_monitor.h - readings of a GPU during a run from NVIDIA's management library (NVML): power, energy, clocks,
// temperature, memory, utilization and throttle reasons
//
// The library is part of the driver and is loaded when a run uses --log-gpu: no build needs it or its header.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace llmc {

// Empty: not available from this GPU or driver.
struct GpuReading {
    std::optional<double> energy_j;      // since the first reading
    std::optional<double> mean_power_w;  // from the reading before to this one, by the energy
    std::optional<double> power_w, sm_mhz, memory_mhz, temperature_c, memory_used_bytes;
    std::optional<double> utilization;  // 0 to 1: the fraction of the driver's sampling period in which a kernel ran
    // nvidia-smi's names; an empty list: the clocks are not throttled
    std::optional<std::vector<std::string>> throttle_reasons;
};
nlohmann::ordered_json to_json(const GpuReading& reading);

// The functions used, as NVML's documentation declares them. They return 0 or an error code.
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
    // A driver may lack these: then they are empty.
    std::function<int(Device, unsigned*)> power_usage;  // milliwatts
    std::function<int(Device, unsigned long long*)> energy;  // millijoules
    std::function<int(Device, Clock, unsigned*)> clock;  // MHz
    std::function<int(Device, Sensor, unsigned*)> temperature;  // degrees Celsius
    std::function<int(Device, Memory*)> memory;
    std::function<int(Device, Utilization*)> utilization;
    std::function<int(Device, unsigned long long*)> throttle_reasons;  // bits

    std::shared_ptr<void> library{};  // keeps it loaded
};
// Throws Error if the library cannot be loaded.
Nvml open_nvml(const char* library = "libnvidia-ml.so.1");

// Reads one GPU periodically on its own thread: a reading may take milliseconds, and no step waits for it.
class GpuMonitor {
public:
    // `id`: as in device::Info. The constructor makes the first reading. Throws Error if NVML does not initialize or
    // does not know the GPU.
    GpuMonitor(Nvml nvml, const std::string& id, std::chrono::milliseconds between = std::chrono::seconds(1));
    ~GpuMonitor();
    GpuMonitor(const GpuMonitor&) = delete;
    GpuMonitor& operator=(const GpuMonitor&) = delete;

    // The last complete reading; never waits.
    GpuReading latest() const;

private:
    GpuReading read();
    void watch(const std::stop_token& stop);

    Nvml nvml_;
    Nvml::Device device_{};
    std::chrono::milliseconds between_;
    // Of the first reading, and of the last one.
    struct Energy {
        double joules, seconds;
    };
    std::optional<Energy> first_, last_;

    mutable std::mutex mutex_;  // guards the two members below
    std::condition_variable_any stopped_;
    GpuReading latest_;

    std::jthread thread_;  // last: it uses all other members
};

// Null, with a note on standard error, if `id` is not a GPU's or NVML cannot be used.
std::unique_ptr<GpuMonitor> monitor_gpu(const std::string& id);

}  // namespace llmc
