// nvml.cpp - stand-in for libnvidia-ml.so.1, a part of the driver: fixed readings, or errors on request
//
// STAND_IN_NVML=FUNCTION:CODE,... makes a function return that nvmlReturn_t.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

// nvmlReturn_t, clocks and sensors, by number
enum : int { kSuccess = 0, kUninitialized = 1, kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6 };
enum : int { kClockSm = 1, kClockMem = 2, kSensorGpu = 0 };

struct Memory { unsigned long long total, free, used; };
struct Utilization { unsigned gpu, memory; };

int users = 0;  // nvmlInit_v2() calls minus nvmlShutdown() calls

// "Each call to nvmlInit is to be met by one to nvmlShutdown."
[[gnu::destructor]] void require_shutdown() {
    if (users == 0) return;
    dprintf(2, "stand-in: NVML is not shut down\n");
    _exit(97);
}

// The status that STAND_IN_NVML sets for the function; otherwise that of an initialized library.
int status_of(const std::string& function, bool arguments) {
    const char* const text = std::getenv("STAND_IN_NVML");
    const std::string all = std::string(",") + (text ? text : "");
    if (const auto at = all.find("," + function + ":"); at != std::string::npos)
        return std::atoi(all.c_str() + at + function.size() + 2);
    if (users == 0) return kUninitialized;
    return arguments ? kSuccess : kInvalidArgument;
}

// A device handle is the address of its element.
constexpr int kMostGpus = 64;
char gpus[kMostGpus];
int gpus_there() {
    const char* const text = std::getenv("STAND_IN_GPUS");
    return text ? std::atoi(text) : 1;
}
bool is_gpu(const void* device) { return device >= gpus && device < gpus + gpus_there(); }
unsigned index_of(const void* device) { return unsigned(static_cast<const char*>(device) - gpus); }

// The reading: `first` for GPU 0, plus `each` for every following GPU.
template <class Value>
int answer(const char* function, const void* device, Value* value, Value first, unsigned each) {
    const int status = status_of(function, is_gpu(device) && value);
    if (status == kSuccess) *value = first + each * index_of(device);
    return status;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
    ++users;
    const int status = status_of("nvmlInit_v2", true);
    if (status != kSuccess) --users;
    return status;
}
int nvmlShutdown() {
    const int status = status_of("nvmlShutdown", true);
    if (status == kSuccess) --users;
    return status;
}
const char* nvmlErrorString(int status) {
    return status == kSuccess ? "Success" : status == kUninitialized ? "Uninitialized"
           : status == kNotSupported ? "Not Supported" : status == kNotFound ? "Not Found"
           : status == 9 ? "Driver Not Loaded" : "Unknown Error";
}
// The UUIDs are those of cudaGetDeviceProperties (cudart.cpp).
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
    const int status = status_of("nvmlDeviceGetHandleByUUID", uuid && device);
    if (status != kSuccess) return status;
    for (int gpu = 0; gpu < gpus_there(); ++gpu) {
        char name[64];
        std::snprintf(name, sizeof name, "GPU-00000000-0000-0000-0000-%012x", gpu);
        if (std::strcmp(uuid, name) != 0) continue;
        *device = gpus + gpu;
        return kSuccess;
    }
    return kNotFound;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
    return answer("nvmlDeviceGetPowerUsage", device, milliwatts, 250500u, 1000);
}
int nvmlDeviceGetClockInfo(void* device, int clock, unsigned* mhz) {
    if (clock != kClockSm && clock != kClockMem) return kInvalidArgument;
    return answer("nvmlDeviceGetClockInfo", device, mhz, clock == kClockSm ? 1980u : 2619u, 1);
}
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* celsius) {
    if (sensor != kSensorGpu) return kInvalidArgument;
    return answer("nvmlDeviceGetTemperature", device, celsius, 61u, 1);
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
    const int status = status_of("nvmlDeviceGetMemoryInfo", is_gpu(device) && memory);
    if (status == kSuccess) *memory = {80ull << 30, 79ull << 30, (1ull << 30) + index_of(device)};
    return status;
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* rates) {
    const int status = status_of("nvmlDeviceGetUtilizationRates", is_gpu(device) && rates);
    if (status == kSuccess) *rates = {97 + index_of(device), 40};
    return status;
}
// The older name of nvmlDeviceGetCurrentClocksEventReasons, which a driver may lack.
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* bits) {
    return answer("nvmlDeviceGetCurrentClocksThrottleReasons", device, bits, 0x4ull, 0);
}

}  // extern "C"
