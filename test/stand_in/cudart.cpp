// cudart.cpp - stand-in for libcudart: the functions of the CUDA runtime that the host code calls
//
// The comment of each function paraphrases the guarantees of NVIDIA's documentation (CUDA Runtime API), and states
// where the stand-in differs.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "test/stand_in/host.h"

using namespace stand_in;

struct CUstream_st {
    std::uint32_t number;
    int priority;
};
struct CUevent_st {
    std::uint32_t number;
    bool timed;
};

namespace {

using Kind = Command::Kind;

constexpr const char* kStream = "cudaStream_t";
constexpr const char* kEvent = "cudaEvent_t";
constexpr int kGreatestPriority = -5;

std::atomic<std::uint32_t> streams = 0, events = 0;
thread_local int device_in_use = 0;
thread_local cudaError_t last_error = cudaSuccess;

// Keeps the last error until cudaGetLastError().
cudaError_t set_status(cudaError_t status) {
    if (status != cudaSuccess) last_error = status;
    return status;
}
#define MAY_FAIL(status) \
    if (failure_injected(__func__)) return set_status(status)
// For functions that release or wait: they do so even if they return an error.
#define DOES_AND_MAY_FAIL(status) \
    const cudaError_t outcome = failure_injected(__func__) ? set_status(status) : cudaSuccess

int device_count() { return int(setting("STAND_IN_GPUS", 1)); }

// Enqueues a command on a stream.
void of_stream(Command command, cudaStream_t stream, const char* function) {
    command.site = call_site(function);
    command.stream = number_of(stream);
    send(command, {}, function);
}

std::uint64_t address_of(const void* memory) { return reinterpret_cast<std::uint64_t>(memory); }

cudaError_t make_event(cudaEvent_t* event, unsigned flags) {
    *event = new CUevent_st{++events, !(flags & cudaEventDisableTiming)};
    made(*event, kEvent);
    return cudaSuccess;
}

}  // namespace

namespace stand_in {

std::uint32_t number_of(cudaStream_t stream) {
    if (stream) require_there(stream, kStream);
    return stream ? stream->number : 0;
}
std::uint32_t number_of(cudaEvent_t event) {
    require_there(event, kEvent);
    return event->number;
}
void enqueue(cudaStream_t stream, std::string_view name, Work work, std::span<const std::byte> payload,
             std::span<const Range> ranges, double seconds) {
    if (payload.size() > kMostPayload) stop("the payload of " + std::string(name) + " is too long");
    Command command{.kind = Kind::work, .site = call_site(name), .seconds = seconds, .work = place_of(
        reinterpret_cast<const void*>(work))};
    command.stream = number_of(stream);
    send(command, ranges, name, payload);
}
// Asynchronous; copies the arguments before it returns.
bool launch(cudaStream_t stream, std::string_view name, Work work, std::span<const std::byte> payload) {
    if (failure_injected("cudaLaunchKernelExC")) return false;
    enqueue(stream, name, work, payload, {});
    return true;
}

}  // namespace stand_in

extern "C" {

// ---- devices

// Number of devices that can run work; 0 is an error.
cudaError_t cudaGetDeviceCount(int* count) {
    MAY_FAIL(cudaErrorInitializationError);
    *count = device_count();
    return *count > 0 ? cudaSuccess : set_status(cudaErrorNoDevice);
}
// Selects the calling thread's device, from 0 to count - 1, for its following allocations, streams and launches. Does
// not wait. (Here each process has the memory and streams of one device only.)
cudaError_t cudaSetDevice(int device) {
    MAY_FAIL(cudaErrorDevicesUnavailable);
    if (device < 0 || device >= device_count()) return set_status(cudaErrorInvalidDevice);
    device_in_use = device;
    return cudaSuccess;
}
// The calling thread's device; without cudaSetDevice device 0.
cudaError_t cudaGetDevice(int* device) {
    MAY_FAIL(cudaErrorInitializationError);
    *device = device_in_use;
    return cudaSuccess;
}
// Properties of a device. The values are those of an H100 as far as the program reads them, except the executor's
// single multiprocessor.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    MAY_FAIL(cudaErrorInvalidValue);
    if (device < 0 || device >= device_count()) return set_status(cudaErrorInvalidDevice);
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "stand-in for a GPU");
    properties->uuid.bytes[15] = char(device);
    properties->major = 9;
    properties->minor = 0;
    properties->l2CacheSize = 64 << 10;
    properties->totalGlobalMem = device_bytes_total();
    properties->multiProcessorCount = 1;
    return cudaSuccess;
}
// An attribute of a device. One multiprocessor, like the executor (limits_host.h); shared memory of compute capability
// 9.0. Attributes that the program does not read are refused like unknown ones.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    MAY_FAIL(cudaErrorInvalidValue);
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount: *value = 1; return cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; return cudaSuccess;
        case cudaDevAttrComputeCapabilityMajor: *value = 9; return cudaSuccess;
        case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
        default: return set_status(cudaErrorInvalidValue);
    }
}
// Waits for all preceding work of the device.
cudaError_t cudaDeviceSynchronize() {
    DOES_AND_MAY_FAIL(cudaErrorIllegalAddress);
    ask({.kind = Kind::sync_device});
    return outcome;
}
// Free and total bytes of the current device. Other processes may allocate the free memory before the caller does.
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    MAY_FAIL(cudaErrorInitializationError);
    *free = device_bytes_free();
    *total = device_bytes_total();
    return cudaSuccess;
}

// ---- errors

// Returns and resets the last error of the calling thread.
cudaError_t cudaGetLastError() {
    const cudaError_t status = last_error;
    last_error = cudaSuccess;
    return status;
}
// The name of the enumerator, or the text below for an unknown number.
const char* cudaGetErrorName(cudaError_t status) {
    switch (status) {
#define NAME(status) case status: return #status
        NAME(cudaSuccess);
        NAME(cudaErrorInvalidValue);
        NAME(cudaErrorMemoryAllocation);
        NAME(cudaErrorInitializationError);
        NAME(cudaErrorInvalidDevice);
        NAME(cudaErrorNoDevice);
        NAME(cudaErrorDevicesUnavailable);
        NAME(cudaErrorInvalidResourceHandle);
        NAME(cudaErrorNotReady);
        NAME(cudaErrorIllegalAddress);
        NAME(cudaErrorNotSupported);
#undef NAME
        default: return "unrecognized error code";
    }
}
// A description of the error. The text is not documented.
const char* cudaGetErrorString(cudaError_t status) {
    switch (status) {
        case cudaSuccess: return "no error";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorInvalidResourceHandle: return "invalid resource handle";
        default: return "the stand-in fails on request";
    }
}

// ---- memory

// Aligned for any type; not initialized. The documentation mentions no synchronization; the stand-in does none.
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    *memory = bytes ? allocate(Memory::device, bytes, __func__) : nullptr;
    return *memory || bytes == 0 ? cudaSuccess : set_status(cudaErrorMemoryAllocation);
}
// Does nothing for null. Freed or unknown memory is an error: here it ends the program, as the program ignores the
// status. The documentation excludes only memory of pools from waiting for work that uses the memory, so cudaFree
// waits; the program must not rely on this to order other work.
cudaError_t cudaFree(void* memory) {
    DOES_AND_MAY_FAIL(cudaErrorInvalidValue);
    if (!memory) return outcome;
    ask({.kind = Kind::drain_device});
    give_back(Memory::device, memory, __func__);
    return outcome;
}
// Page-locked memory that the device can access.
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    *memory = bytes ? allocate(Memory::pinned, bytes, __func__) : nullptr;
    return *memory || bytes == 0 ? cudaSuccess : set_status(cudaErrorMemoryAllocation);
}
// Does not promise to wait for pending copies.
cudaError_t cudaFreeHost(void* memory) {
    DOES_AND_MAY_FAIL(cudaErrorInvalidValue);
    if (memory) give_back(Memory::pinned, memory, __func__);
    return outcome;
}
// Checks the direction against the pointers. Asynchronous copies of pageable memory "may" be synchronous: the program
// must not rely on it, so here they are asynchronous.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    MAY_FAIL(cudaErrorInvalidValue);
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (is_device(to) != to_device || is_device(from) != from_device) return set_status(cudaErrorInvalidValue);
    of_stream({.kind = Kind::copy, .to = address_of(to), .from = address_of(from), .bytes = bytes, .seconds = 1e-6},
              stream, __func__);
    return cudaSuccess;
}
// Sets each byte to the lowest byte of the value. Asynchronous; may overlap with work of other streams.
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
    MAY_FAIL(cudaErrorInvalidValue);
    if (!is_device(memory)) return set_status(cudaErrorInvalidValue);
    of_stream({.kind = Kind::fill, .value = std::uint32_t(value), .to = address_of(memory), .bytes = bytes,
               .seconds = 1e-6}, stream, __func__);
    return cudaSuccess;
}

// ---- streams

// The range of useful priorities: lower numbers are greater priorities. Which numbers is not documented.
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    MAY_FAIL(cudaErrorInvalidValue);
    *least = 0;
    *greatest = kGreatestPriority;
    return cudaSuccess;
}
// Work in a non-blocking stream may overlap with that of the default stream. (Blocking streams are not supported here:
// the program has none.) A priority outside of the range is moved into it, and only affects which work starts first.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    if (flags != cudaStreamNonBlocking) stop("the stand-in does not support blocking streams");
    *stream = new CUstream_st{++streams, std::clamp(priority, kGreatestPriority, 0)};
    made(*stream, kStream);
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    MAY_FAIL(cudaErrorInvalidValue);
    require_there(stream, kStream);
    *priority = stream->priority;
    return cudaSuccess;
}
// Returns at once; pending work of the stream still completes.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    DOES_AND_MAY_FAIL(cudaErrorInvalidResourceHandle);
    released(stream, kStream);
    return outcome;
}
// Waits until all preceding work of the stream is done.
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    DOES_AND_MAY_FAIL(cudaErrorIllegalAddress);
    ask({.kind = Kind::sync_stream, .stream = number_of(stream)});
    return outcome;
}
// Following work in the stream waits for the work captured by the last record of the event before this call; for
// nothing if the event was never recorded.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    MAY_FAIL(cudaErrorInvalidResourceHandle);
    of_stream({.kind = Kind::wait_for_event, .event = number_of(event)}, stream, __func__);
    return cudaSuccess;
}
// The function runs after preceding work of the stream; following work waits for it. It must not call CUDA.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
    MAY_FAIL(cudaErrorInvalidValue);
    of_stream({.kind = Kind::call_host, .to = address_of(argument),
               .from = reinterpret_cast<std::uint64_t>(function), .seconds = 1e-6}, stream, __func__);
    return cudaSuccess;
}

// ---- events

// For the current device, with default flags: records times; a waiting host thread spins.
cudaError_t cudaEventCreate(cudaEvent_t* event) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    return make_event(event, cudaEventDefault);
}
// cudaEventDisableTiming: records no time. cudaEventBlockingSync: a waiting host thread sleeps.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    return make_event(event, flags);
}
// May be called while captured work is pending; waiters still wait for it.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    DOES_AND_MAY_FAIL(cudaErrorInvalidResourceHandle);
    released(event, kEvent);
    send({.kind = Kind::destroy_event, .event = event->number});
    return outcome;
}
// Captures the preceding work of the stream; replaces an earlier record.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    MAY_FAIL(cudaErrorInvalidResourceHandle);
    of_stream({.kind = Kind::record, .event = number_of(event)}, stream, __func__);
    return cudaSuccess;
}
// Whether all captured work is done; yes if the event was never recorded. cudaErrorNotReady does not set the last
// error.
cudaError_t cudaEventQuery(cudaEvent_t event) {
    MAY_FAIL(cudaErrorIllegalAddress);
    return ask({.kind = Kind::query_event, .event = number_of(event)}) != 0 ? cudaSuccess : cudaErrorNotReady;
}
// Waits for all captured work; returns at once if the event was never recorded.
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    DOES_AND_MAY_FAIL(cudaErrorIllegalAddress);
    ask({.kind = Kind::sync_event, .event = number_of(event)});
    return outcome;
}
// Milliseconds between two recorded, completed events with timing.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    MAY_FAIL(cudaErrorInvalidResourceHandle);
    if (!begin->timed || !end->timed) return set_status(cudaErrorInvalidResourceHandle);
    const double seconds = ask({.kind = Kind::elapsed, .event = number_of(begin), .other_event = number_of(end)});
    if (seconds == kNeverRecorded) return set_status(cudaErrorInvalidResourceHandle);
    if (seconds == kNotDone) return set_status(cudaErrorNotReady);
    *milliseconds = float(seconds * 1e3);
    return cudaSuccess;
}

// ---- called only by cuDNN's frontend, for plans that its stand-in never makes

#define NEVER(...)                                                                    \
    cudaError_t __VA_ARGS__ {                                                         \
        stop(std::string(__func__) + " has no stand-in; it must not be called"); \
    }
NEVER(cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned long long,
                                       cudaDriverEntryPointQueryResult*))
NEVER(cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned))
NEVER(cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int))
NEVER(cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t, cudaStream_t))
NEVER(cudaLibraryGetKernel(cudaKernel_t*, cudaLibrary_t, const char*))
NEVER(cudaLibraryLoadData(cudaLibrary_t*, const void*, cudaJitOption*, void**, unsigned, cudaLibraryOption*, void**,
                          unsigned))
NEVER(cudaLibraryUnload(cudaLibrary_t))
NEVER(cudaPointerGetAttributes(cudaPointerAttributes*, const void*))
NEVER(cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus*, unsigned long long*, cudaGraph_t*,
                               const cudaGraphNode_t**, const cudaGraphEdgeData**, std::size_t*))
NEVER(cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*))
NEVER(cudaUserObjectCreate(cudaUserObject_t*, void*, cudaHostFn_t, unsigned, unsigned))
NEVER(cudaUserObjectRelease(cudaUserObject_t, unsigned))

}  // extern "C"
