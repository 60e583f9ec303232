// gpu_monitor_test.cpp - NVML results that are present, missing or late
#include "llmc/run/log/gpu_monitor.h"

#include <atomic>
#include <future>
#include <nlohmann/json.hpp>

#include "llmc/base/clock.h"
#include "llmc/base/json_text.h"
#include "llmc/run/log/report.h"
#include "test/support/scratch_folder.h"

using namespace llmc;
using namespace test;

namespace {

constexpr int kNotSupported = 3, kNotFound = 6, kDriverNotLoaded = 9;
const std::string kId = "GPU-0123456789abcdef0123456789abcdef";
const std::chrono::hours kNever{1};

// A library in which every function succeeds.
Nvml working_nvml() {
    Nvml nvml;
    nvml.init = nvml.shutdown = [] { return 0; };
    nvml.error_string = [](int status) { return status == kNotFound ? "Not Found" : "Driver Not Loaded"; };
    nvml.device_by_uuid = [](const char*, Nvml::Device* device) { return *device = nullptr, 0; };
    nvml.power_usage = [](Nvml::Device, unsigned* milliwatts) { return *milliwatts = 612345, 0; };
    nvml.energy = [](Nvml::Device, unsigned long long* millijoules) { return *millijoules = 7'000'500, 0; };
    nvml.clock = [](Nvml::Device, Nvml::Clock clock, unsigned* mhz) {
        return *mhz = clock == Nvml::kClockSm ? 1980 : 2619, 0;
    };
    nvml.temperature = [](Nvml::Device, Nvml::Sensor, unsigned* celsius) { return *celsius = 61, 0; };
    nvml.memory = [](Nvml::Device, Nvml::Memory* memory) { return *memory = {100, 60, 40}, 0; };
    nvml.utilization = [](Nvml::Device, Nvml::Utilization* rates) { return *rates = {98, 40}, 0; };
    nvml.throttle_reasons = [](Nvml::Device, unsigned long long* bits) { return *bits = 0, 0; };
    return nvml;
}

std::string reading_text(const Nvml& nvml) { return text_of(to_json(GpuMonitor(nvml, kId, kNever).latest())); }

}  // namespace

TEST_CASE("NVML's results become readings, each in the unit of its name; those that are not provided are null",
          "[gpu_monitor]") {
    Nvml nvml = working_nvml();
    CHECK(reading_text(nvml) ==
          R"({"energy_j":0.0,"mean_power_w":null,)"
          R"("power_w":612.345,"sm_mhz":1980.0,"memory_mhz":2619.0,"temperature_c":61.0,"memory_used_bytes":40.0,)"
          R"("utilization":0.98,"throttle_reasons":[]})");
    nvml.power_usage = [](Nvml::Device, unsigned* milliwatts) { return *milliwatts = 1, kNotSupported; };
    nvml.clock = [](Nvml::Device, Nvml::Clock clock, unsigned* mhz) {
        return *mhz = 2619, clock == Nvml::kClockSm ? kNotSupported : 0;
    };
    nvml.energy = [](Nvml::Device, unsigned long long*) { return kNotSupported; };
    nvml.utilization = nullptr;
    nvml.throttle_reasons = [](Nvml::Device, unsigned long long*) { return kNotSupported; };
    CHECK(reading_text(nvml) ==
          R"({"energy_j":null,"mean_power_w":null,)"
          R"("power_w":null,"sm_mhz":null,"memory_mhz":2619.0,"temperature_c":61.0,"memory_used_bytes":40.0,)"
          R"("utilization":null,"throttle_reasons":null})");
}

TEST_CASE("throttle reasons are reported by name, and by bit if they have no name yet", "[gpu_monitor]") {
    Nvml nvml = working_nvml();
    nvml.throttle_reasons = [](Nvml::Device, unsigned long long* bits) { return *bits = 0x4 | 0x40 | 0x200, 0; };
    CHECK(*GpuMonitor(nvml, kId, kNever).latest().throttle_reasons ==
          std::vector<std::string>{"sw_power_cap", "hw_thermal_slowdown", "bit_9"});
    nvml.throttle_reasons = [](Nvml::Device, unsigned long long* bits) { return *bits = 0x1ff, 0; };
    CHECK(*GpuMonitor(nvml, kId, kNever).latest().throttle_reasons ==
          std::vector<std::string>{"gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown",
                                   "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown",
                                   "hw_power_brake_slowdown", "display_clock_setting"});
}

TEST_CASE("NVML finds the GPU by CUDA's id, and is shut down even if that fails", "[gpu_monitor]") {
    Nvml nvml = working_nvml();
    std::string asked;
    int users = 0, unknown = 0;
    nvml.init = [&] { return ++users, 0; };
    nvml.shutdown = [&] { return --users, 0; };
    nvml.device_by_uuid = [&](const char* uuid, Nvml::Device*) { return asked = uuid, unknown; };
    {
        const GpuMonitor watch(nvml, kId, kNever);
        CHECK(asked == "GPU-01234567-89ab-cdef-0123-456789abcdef");
        CHECK(users == 1);
    }
    CHECK(users == 0);
    unknown = kNotFound;
    CHECK_THROWS_WITH(GpuMonitor(nvml, kId, kNever),
                      Contains("GPU-01234567-89ab-cdef-0123-456789abcdef is \"Not Found\"; expected"));
    CHECK(users == 0);
    nvml.init = [] { return kDriverNotLoaded; };
    CHECK_THROWS_WITH(GpuMonitor(nvml, kId, kNever), Contains("nvmlInit is \"Driver Not Loaded\"; expected"));
    CHECK(users == 0);
}

TEST_CASE("the energy since the first reading gives the power between two readings, and the energy of a step",
          "[gpu_monitor]") {
    Nvml nvml = working_nvml();
    std::atomic<unsigned long long> readings = 0;
    const double began = seconds_now();
    nvml.energy = [&](Nvml::Device, unsigned long long* millijoules) {  // 600 W
        ++readings;
        return *millijoules = 5'000'000 + (unsigned long long)(6e5 * (seconds_now() - began)), 0;
    };
    auto monitor = std::make_unique<GpuMonitor>(nvml, kId, std::chrono::milliseconds(100));
    while (readings < 4) std::this_thread::yield();
    const GpuReading reading = monitor->latest();
    CHECK(reading.mean_power_w.value() == Approx(600).epsilon(0.3));  // the thread may have waited for a core
    CHECK(reading.energy_j.value() >= 600 * 0.1);                     // of an interval or more

    const ScratchFolder folder;
    Report report((folder / "run").string(), 10, true);
    report.log_gpu(std::move(monitor));
    report.step({.speed = {.ms = 500}});
    CHECK(parse_json(read_bytes(folder / "run" / kLogName))["step_j"].get<double>() == Approx(300).epsilon(0.3));
}

TEST_CASE("latest() does not wait for a slow reading, and readings continue after it", "[gpu_monitor]") {
    Nvml nvml = working_nvml();
    std::promise<void> may_end;
    std::atomic<int> readings = 0;
    nvml.temperature = [&, end = may_end.get_future().share()](Nvml::Device, Nvml::Sensor, unsigned* celsius) {
        *celsius = unsigned(60 + ++readings);
        if (readings == 2) end.wait();
        return 0;
    };
    const GpuMonitor watch(nvml, kId, std::chrono::milliseconds(1));
    while (readings < 2) std::this_thread::yield();
    CHECK(watch.latest().temperature_c == 61);  // returns while the second reading waits
    may_end.set_value();
    while (readings < 4) std::this_thread::yield();
    CHECK(watch.latest().temperature_c >= 63);
}

TEST_CASE("a missing or wrong NVML library is an error", "[gpu_monitor]") {
    CHECK_THROWS_WITH(open_nvml("libnot-there.so.1"),
                      Contains("NVML is not found (libnot-there.so.1: ") && Contains("; expected a library of NVIDIA"));
    CHECK_THROWS_WITH(open_nvml("libc.so.6"), Contains("NVML is \"libc.so.6\" without NVML's functions; expected"));
    CHECK(written_to(STDERR_FILENO, [] { CHECK(!monitor_gpu("")); }) ==
          "note: --log-gpu: the log has no \"gpu\": this build trains on a CPU\n");
}

TEST_CASE("a step has a GPU reading with --log-gpu, or null if there is none", "[gpu_monitor]") {
    const ScratchFolder folder;
    const auto step_of = [&](const std::string& name, auto&& prepare) {
        const auto path = folder / name;
        Report report(path.string(), 10, true);
        prepare(report);
        report.step({});
        return parse_json(read_bytes(path / kLogName));
    };
    CHECK(!step_of("not asked", [](Report&) {}).contains("gpu"));
    CHECK(step_of("none", [](Report& report) { report.log_gpu(nullptr); })["gpu"].is_null());
    const auto step = step_of("all", [](Report& report) {
        report.log_gpu(std::make_unique<GpuMonitor>(working_nvml(), kId, kNever));
    });
    CHECK(step["gpu"]["power_w"] == 612.345);
}
