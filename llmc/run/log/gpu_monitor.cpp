// gpu_monitor.cpp - loads NVML at run time, and reads it on a thread
#include "llmc/run/log/gpu_monitor.h"

#include <dlfcn.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/start_thread.h"
#include "llmc/base/clock.h"
#include "llmc/base/json_text.h"
#include "llmc/base/standard_streams.h"

namespace llmc {
namespace {

constexpr int kNvmlSuccess = 0;

// By bit (nvmlClocksEventReasons); the names are those of nvidia-smi --query-gpu=clocks_throttle_reasons.*.
constexpr const char* kThrottleReasons[] = {
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
    "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting"};

std::vector<std::string> names_of_throttle_reasons(unsigned long long bits) {
    std::vector<std::string> names;
    for (std::size_t bit = 0; bit < 64; ++bit)
        if (bits >> bit & 1)
            names.push_back(bit < std::size(kThrottleReasons) ? kThrottleReasons[bit] : "bit_" + std::to_string(bit));
    return names;
}

// From "GPU-" and 32 digits to NVML's form: "GPU-01234567-89ab-cdef-0123-456789abcdef".
std::string nvml_uuid(std::string id) {
    constexpr std::size_t kPrefix = 4;
    for (const std::size_t digits : {20, 16, 12, 8})
        if (id.size() > kPrefix + digits) id.insert(kPrefix + digits, 1, '-');
    return id;
}

[[noreturn]] void refuse_nvml(const Nvml& nvml, const std::string& what, int status) {
    const char* const why = nvml.error_string(status);
    fail(what, in_quotes(why ? why : std::to_string(status)), "success", "nvidia-smi may show more", Blame::runtime);
}

// The result of `function`; empty if the library lacks it or it fails, for example because the GPU does not support it.
template <class Value, class Function, class... Arguments>
std::optional<Value> ask_nvml(const Function& function, Arguments... arguments) {
    Value value{};
    if (!function || function(arguments..., &value) != kNvmlSuccess) return {};
    return value;
}

}  // namespace

nlohmann::ordered_json to_json(const GpuReading& reading) {
    nlohmann::ordered_json json{{"energy_j", number_or_null(reading.energy_j)},
                                {"mean_power_w", number_or_null(reading.mean_power_w)},
                                {"power_w", number_or_null(reading.power_w)},
                                {"sm_mhz", number_or_null(reading.sm_mhz)},
                                {"memory_mhz", number_or_null(reading.memory_mhz)},
                                {"temperature_c", number_or_null(reading.temperature_c)},
                                {"memory_used_bytes", number_or_null(reading.memory_used_bytes)},
                                {"utilization", number_or_null(reading.utilization)},
                                {"throttle_reasons", nullptr}};
    if (reading.throttle_reasons) json["throttle_reasons"] = *reading.throttle_reasons;
    return json;
}

Nvml open_nvml(const char* name) {
    Nvml nvml;
    nvml.library = {dlopen(name, RTLD_NOW | RTLD_LOCAL), [](void* library) { if (library) dlclose(library); }};
    if (!nvml.library) fail("NVML", std::string("not found (") + dlerror() + ")", "a library of NVIDIA's driver", "",
                            Blame::runtime);
    // The first symbol that the library has: newer drivers have new names in addition to the old ones.
    const auto find = [&]<class Result, class... Arguments>(std::function<Result(Arguments...)>& function,
                                                            std::initializer_list<const char*> symbols) {
        for (const char* const symbol : symbols)
            if (!function)
                if (void* const found = dlsym(nvml.library.get(), symbol))
                    function = reinterpret_cast<Result (*)(Arguments...)>(found);
        return bool(function);
    };
    const bool usable = find(nvml.init, {"nvmlInit_v2"}) && find(nvml.shutdown, {"nvmlShutdown"}) &&
                        find(nvml.error_string, {"nvmlErrorString"}) &&
                        find(nvml.device_by_uuid, {"nvmlDeviceGetHandleByUUID"});
    require(usable, "NVML", in_quotes(name) + " without NVML's functions", "a library of NVIDIA's driver");
    find(nvml.power_usage, {"nvmlDeviceGetPowerUsage"});
    find(nvml.energy, {"nvmlDeviceGetTotalEnergyConsumption"});
    find(nvml.clock, {"nvmlDeviceGetClockInfo"});
    find(nvml.temperature, {"nvmlDeviceGetTemperature"});
    find(nvml.memory, {"nvmlDeviceGetMemoryInfo"});
    find(nvml.utilization, {"nvmlDeviceGetUtilizationRates"});
    find(nvml.throttle_reasons, {"nvmlDeviceGetCurrentClocksEventReasons",
                                 "nvmlDeviceGetCurrentClocksThrottleReasons"});
    return nvml;
}

GpuMonitor::GpuMonitor(Nvml nvml, const std::string& id, std::chrono::milliseconds between)
    : nvml_(std::move(nvml)),
      between_(between) {
    if (const int status = nvml_.init(); status != kNvmlSuccess)
        refuse_nvml(nvml_, "the result of nvmlInit", status);
    const std::string uuid = nvml_uuid(id);
    if (const int status = nvml_.device_by_uuid(uuid.c_str(), &device_); status != kNvmlSuccess) {
        nvml_.shutdown();
        refuse_nvml(nvml_, "NVML's result for " + uuid, status);
    }
    latest_ = read();
    thread_ = start_thread<std::jthread>([this](const std::stop_token& stop) { watch(stop); });
}

GpuMonitor::~GpuMonitor() {
    thread_.request_stop();
    thread_.join();
    nvml_.shutdown();
}

GpuReading GpuMonitor::latest() const {
    const std::lock_guard lock(mutex_);
    return latest_;
}

GpuReading GpuMonitor::read() {
    const auto power = ask_nvml<unsigned>(nvml_.power_usage, device_);
    const auto memory = ask_nvml<Nvml::Memory>(nvml_.memory, device_);
    const auto utilization = ask_nvml<Nvml::Utilization>(nvml_.utilization, device_);
    const auto reasons = ask_nvml<unsigned long long>(nvml_.throttle_reasons, device_);
    GpuReading reading{.sm_mhz = ask_nvml<unsigned>(nvml_.clock, device_, Nvml::kClockSm),
                   .memory_mhz = ask_nvml<unsigned>(nvml_.clock, device_, Nvml::kClockMemory),
                   .temperature_c = ask_nvml<unsigned>(nvml_.temperature, device_, Nvml::kSensorGpu)};
    if (power) reading.power_w = *power / 1e3;
    if (const auto energy = ask_nvml<unsigned long long>(nvml_.energy, device_)) {
        const Energy now{double(*energy) / 1e3, seconds_now()};
        if (!first_) first_ = now;
        reading.energy_j = now.joules - first_->joules;
        if (last_ && now.seconds > last_->seconds)
            reading.mean_power_w = (now.joules - last_->joules) / (now.seconds - last_->seconds);
        last_ = now;
    }
    if (memory) reading.memory_used_bytes = double(memory->used);
    if (utilization) reading.utilization = utilization->gpu / 100.0;
    if (reasons) reading.throttle_reasons = names_of_throttle_reasons(*reasons);
    return reading;
}

void GpuMonitor::watch(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stopped_.wait_for(lock, stop, between_, [&] { return stop.stop_requested(); })) {
        lock.unlock();
        GpuReading reading = read();
        lock.lock();
        latest_ = std::move(reading);
    }
}

std::unique_ptr<GpuMonitor> monitor_gpu(const std::string& id) {
    if (id.empty()) {
        print_stderr("note: --log-gpu: the log has no \"gpu\": this build trains on a CPU");
        return {};
    }
    try {
        return std::make_unique<GpuMonitor>(open_nvml(), id);
    } catch (const Error& error) {
        print_stderr(std::string("note: --log-gpu: \"gpu\" is null in the log: ") + error.what());
        return {};
    }
}

}  // namespace llmc
