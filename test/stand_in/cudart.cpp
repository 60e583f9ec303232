// cudart.cpp - stand-in for libcudart: the functions of the CUDA runtime that the host code calls
//
// Comments say what NVIDIA's documentation (CUDA Runtime API) guarantees where that is less than one expects, and where
// the stand-in differs.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "test/stand_in/protocol.h"

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

constexpr int kGreatestPriority = -5;

std::atomic<std::uint32_t> streams = 0, events = 0;
thread_local int device_in_use = 0;
thread_local cudaError_t last_error = cudaSuccess;

// Keeps the last error until cudaGetLastError().
cudaError_t set_status(cudaError_t status) {
    if (status != cudaSuccess) last_error = status;
    return status;
}
#define MAY_FAIL(status) STAND_IN_MAY_FAIL(set_status(status))
// For functions that release or wait: they do so even if they return an error.
#define DOES_AND_MAY_FAIL(status) \
    const cudaError_t outcome = failure_injected(__func__) ? set_status(status) : cudaSuccess

int device_count() { return int(setting("STAND_IN_GPUS", 1)); }

std::uint32_t number_of(cudaStream_t stream) { return stream ? stream->number : 0; }

// Enqueues a command on a stream.
cudaError_t of_stream(Command command, cudaStream_t stream, const char* function) {
    command.stream = number_of(stream);
    send(command, {}, function);
    return cudaSuccess;
}

std::uint64_t address_of(const void* memory) { return reinterpret_cast<std::uint64_t>(memory); }

cudaError_t take_memory(void** memory, std::size_t bytes, Memory kind) {
    *memory = bytes ? allocate(kind, bytes) : nullptr;
    return set_status(*memory || bytes == 0 ? cudaSuccess : cudaErrorMemoryAllocation);
}

}  // namespace

void stand_in::enqueue(cudaStream_t stream, std::string_view name, Work work, std::span<const std::byte> payload,
                       std::span<const Range> ranges, double seconds) {
    if (payload.size() > kMostPayload) stop("the payload of " + std::string(name) + " is too long");
    send({.kind = Kind::work, .stream = number_of(stream), .seconds = seconds,
          .work = reinterpret_cast<const char*>(work) - program_begin}, ranges, name, payload);
}

extern "C" {

// ---- devices. Each process has the memory and streams of one device only.

cudaError_t cudaGetDeviceCount(int* count) {
    MAY_FAIL(cudaErrorInitializationError);
    *count = device_count();
    return set_status(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
    MAY_FAIL(cudaErrorDevicesUnavailable);
    if (device < 0 || device >= device_count()) return set_status(cudaErrorInvalidDevice);
    device_in_use = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    MAY_FAIL(cudaErrorInitializationError);
    *device = device_in_use;
    return cudaSuccess;
}
// As far as the program reads them, the properties and attributes of an H100, but for the executor's single
// multiprocessor (limits_host.h).
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
cudaError_t cudaDeviceSynchronize() {
    DOES_AND_MAY_FAIL(cudaErrorIllegalAddress);
    ask({.kind = Kind::sync_device});
    return outcome;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    MAY_FAIL(cudaErrorInitializationError);
    *free = device_bytes_free();
    *total = device_bytes_total();
    return cudaSuccess;
}

// ---- errors

cudaError_t cudaGetLastError() {
    const cudaError_t status = last_error;
    last_error = cudaSuccess;
    return status;
}
const char* cudaGetErrorName(cudaError_t status) {
    thread_local std::string name;
    name = "cudaError_t " + std::to_string(int(status));
    return name.c_str();
}
const char* cudaGetErrorString(cudaError_t) { return "an error of the stand-in for CUDA"; }
// The stand-in for cuDNN supports nothing: the Makefile generates its other functions.
const char* cudnnGetErrorString(int) { return "CUDNN_STATUS_NOT_SUPPORTED"; }

// ---- memory

// Not initialized. The documentation mentions no synchronization.
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    return take_memory(memory, bytes, Memory::device);
}
// Freed or unknown memory is an error: here it ends the program, as the program ignores the status. The documentation
// excludes only memory of pools from waiting for work that uses the memory, so cudaFree waits; the program must not
// rely on this to order other work.
cudaError_t cudaFree(void* memory) {
    DOES_AND_MAY_FAIL(cudaErrorInvalidValue);
    if (!memory) return outcome;
    ask({.kind = Kind::drain_device});
    give_back(Memory::device, memory);
    return outcome;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    return take_memory(memory, bytes, Memory::pinned);
}
// Does not promise to wait for pending copies.
cudaError_t cudaFreeHost(void* memory) {
    DOES_AND_MAY_FAIL(cudaErrorInvalidValue);
    if (memory) give_back(Memory::pinned, memory);
    return outcome;
}
// Checks the direction against the pointers. Asynchronous copies of pageable memory "may" be synchronous: the program
// must not rely on it, so here they are asynchronous.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    MAY_FAIL(cudaErrorInvalidValue);
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (is_device(to) != to_device || is_device(from) != from_device) return set_status(cudaErrorInvalidValue);
    return of_stream({.kind = Kind::copy, .to = address_of(to), .from = address_of(from), .bytes = bytes,
                      .seconds = kMicrosecond}, stream, __func__);
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
    MAY_FAIL(cudaErrorInvalidValue);
    if (!is_device(memory)) return set_status(cudaErrorInvalidValue);
    return of_stream({.kind = Kind::fill, .value = std::uint32_t(value), .to = address_of(memory), .bytes = bytes,
                      .seconds = kMicrosecond}, stream, __func__);
}

// ---- streams

// Lower numbers are greater priorities. Which numbers is not documented.
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    MAY_FAIL(cudaErrorInvalidValue);
    *least = 0;
    *greatest = kGreatestPriority;
    return cudaSuccess;
}
// Work in a non-blocking stream may overlap with that of the default stream. A priority outside of the range is moved
// into it, and only affects which work starts first.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    if (flags != cudaStreamNonBlocking) stop("the stand-in does not support blocking streams");
    *stream = new CUstream_st{++streams, std::clamp(priority, kGreatestPriority, 0)};
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    MAY_FAIL(cudaErrorInvalidValue);
    *priority = stream->priority;
    return cudaSuccess;
}
// Returns at once; pending work of the stream still completes.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    DOES_AND_MAY_FAIL(cudaErrorInvalidResourceHandle);
    delete stream;
    return outcome;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    DOES_AND_MAY_FAIL(cudaErrorIllegalAddress);
    ask({.kind = Kind::sync_stream, .stream = number_of(stream)});
    return outcome;
}
// Following work in the stream waits for the work captured by the last record of the event before this call; for
// nothing if the event was never recorded.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    MAY_FAIL(cudaErrorInvalidResourceHandle);
    return of_stream({.kind = Kind::wait_for_event, .event = event->number}, stream, __func__);
}
// The function runs after preceding work of the stream; following work waits for it. It must not call CUDA.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
    MAY_FAIL(cudaErrorInvalidValue);
    return of_stream({.kind = Kind::call_host, .to = address_of(argument),
                      .from = reinterpret_cast<std::uint64_t>(function), .seconds = kMicrosecond}, stream, __func__);
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    *event = new CUevent_st{++events, !(flags & cudaEventDisableTiming)};
    return cudaSuccess;
}
// May be called while captured work is pending; waiters still wait for it.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    DOES_AND_MAY_FAIL(cudaErrorInvalidResourceHandle);
    send({.kind = Kind::destroy_event, .event = event->number});
    delete event;
    return outcome;
}
// Captures the preceding work of the stream; replaces an earlier record.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    MAY_FAIL(cudaErrorInvalidResourceHandle);
    return of_stream({.kind = Kind::record, .event = event->number}, stream, __func__);
}
// Yes if the event was never recorded. cudaErrorNotReady does not set the last error.
cudaError_t cudaEventQuery(cudaEvent_t event) {
    MAY_FAIL(cudaErrorIllegalAddress);
    return ask({.kind = Kind::query_event, .event = event->number}) != 0 ? cudaSuccess : cudaErrorNotReady;
}
// Returns at once if the event was never recorded.
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    DOES_AND_MAY_FAIL(cudaErrorIllegalAddress);
    ask({.kind = Kind::sync_event, .event = event->number});
    return outcome;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    MAY_FAIL(cudaErrorInvalidResourceHandle);
    if (!begin->timed || !end->timed) return set_status(cudaErrorInvalidResourceHandle);
    const double seconds = ask({.kind = Kind::elapsed, .event = begin->number, .other_event = end->number});
    if (seconds == kNeverRecorded) return set_status(cudaErrorInvalidResourceHandle);
    if (seconds == kNotDone) return set_status(cudaErrorNotReady);
    *milliseconds = float(seconds * 1e3);
    return cudaSuccess;
}

}  // extern "C"
