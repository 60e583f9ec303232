// cudart.cpp - the functions of the CUDA runtime that the host code calls, in place of libcudart
//
// With each function: what NVIDIA's documentation (CUDA Runtime API) says of it that the program may rely on, in other
// words, and what is kept of that.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "test/stand_in/host.h"

using namespace stand_in;

struct CUstream_st { std::uint32_t number; };
struct CUevent_st {
    std::uint32_t number;
    bool timed;
};

namespace {

using Kind = Command::Kind;

constexpr const char* kStream = "cudaStream_t";
constexpr const char* kEvent = "cudaEvent_t";

std::atomic<std::uint32_t> streams = 0, events = 0;
thread_local int device_in_use = 0;
thread_local cudaError_t last_error = cudaSuccess;

// The last status that is no success stays until it is asked for.
cudaError_t said(cudaError_t status) {
    if (status != cudaSuccess) last_error = status;
    return status;
}
#define MAY_FAIL(status) \
    if (told_to_fail(__func__)) return said(status)
// What gives back or waits does so all the same.
#define DOES_AND_MAY_FAIL(status) \
    const cudaError_t outcome = told_to_fail(__func__) ? said(status) : cudaSuccess

int device_count() { return int(setting("STAND_IN_GPUS", 1)); }

// The stream that a call is given; or the default one, which nothing orders with others, where dev/mutate_events.sh
// asks for it.
std::uint32_t stream_for(cudaStream_t stream, std::uint32_t site) {
    return mutation_of(site) == Mutation::other_stream ? 0 : number_of(stream);
}

// A command of a stream, unless the call is to be left out.
void of_stream(Command command, cudaStream_t stream, const char* function) {
    command.site = call_site(function);
    if (mutation_of(command.site) == Mutation::skip) return;
    command.stream = stream_for(stream, command.site);
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
    if (mutation_of(command.site) == Mutation::skip) return;
    command.stream = stream_for(stream, command.site);
    send(command, ranges, name, payload);
}

}  // namespace stand_in

extern "C" {

// ---- devices

// How many devices can run something; none is an error of its own.
cudaError_t cudaGetDeviceCount(int* count) {
    MAY_FAIL(cudaErrorInitializationError);
    *count = device_count();
    return *count > 0 ? cudaSuccess : said(cudaErrorNoDevice);
}
// For the calling thread, from then on: what it allocates, creates and launches is that device's. Numbers run from 0 to
// the count - 1. It waits for no device. (Here each process has the memory and streams of one device only.)
cudaError_t cudaSetDevice(int device) {
    MAY_FAIL(cudaErrorDevicesUnavailable);
    if (device < 0 || device >= device_count()) return said(cudaErrorInvalidDevice);
    device_in_use = device;
    return cudaSuccess;
}
// The calling thread's; without cudaSetDevice the first one.
cudaError_t cudaGetDevice(int* device) {
    MAY_FAIL(cudaErrorInitializationError);
    *device = device_in_use;
    return cudaSuccess;
}
// Of the device of that number. Which it has is not the documentation's to say: here what the program reads, as on an
// H100, but for the executor's one multiprocessor.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    MAY_FAIL(cudaErrorInvalidValue);
    if (device < 0 || device >= device_count()) return said(cudaErrorInvalidDevice);
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
// A number for an attribute of a device. One multiprocessor, as the executor pretends to have (limits_host.h); shared
// memory of compute capability 9.0. Attributes that the program does not ask for are refused like unknown ones.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    MAY_FAIL(cudaErrorInvalidValue);
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount: *value = 1; return cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; return cudaSuccess;
        case cudaDevAttrComputeCapabilityMajor: *value = 9; return cudaSuccess;
        case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
        default: return said(cudaErrorInvalidValue);
    }
}
// Waits for all that the device was given before.
cudaError_t cudaDeviceSynchronize() {
    DOES_AND_MAY_FAIL(cudaErrorIllegalAddress);
    ask({.kind = Kind::sync_device});
    return outcome;
}
// Bytes of the current device; others may take what is free before the caller does, so nobody is promised to get it.
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    MAY_FAIL(cudaErrorInitializationError);
    *free = device_bytes_free();
    *total = device_bytes_total();
    return cudaSuccess;
}

// ---- errors

// Gives the last error of the calling thread and forgets it.
cudaError_t cudaGetLastError() {
    const cudaError_t status = last_error;
    last_error = cudaSuccess;
    return status;
}
// The name as the header has it, or the text below for a number that is none.
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
        NAME(cudaErrorLaunchFailure);
        NAME(cudaErrorNotSupported);
#undef NAME
        default: return "unrecognized error code";
    }
}
// A description of the error. The words are not documented.
const char* cudaGetErrorString(cudaError_t status) {
    switch (status) {
        case cudaSuccess: return "no error";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorInvalidResourceHandle: return "invalid resource handle";
        default: return "the stand-in was told to fail";
    }
}

// ---- memory

// Aligned for any type of variable; the memory is not cleared. It says nothing of waiting, and does not.
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    *memory = bytes ? allocate(Memory::device, bytes, __func__) : nullptr;
    return *memory || bytes == 0 ? cudaSuccess : said(cudaErrorMemoryAllocation);
}
// Of null it does nothing; of what was freed, or never allocated, it returns an error: here it is the end, as the
// program does not look at the status. That work which may still use the memory is waited for is what the sentence on
// memory of pools implies, for which alone it is said not to be; nobody may lean on it for an order of other work, and
// with STAND_IN_FREE=now nobody may lean on it at all.
cudaError_t cudaFree(void* memory) {
    DOES_AND_MAY_FAIL(cudaErrorInvalidValue);
    if (!memory) return outcome;
    static const bool now = std::getenv("STAND_IN_FREE") != nullptr;
    if (!now) ask({.kind = Kind::drain_device});
    give_back(Memory::device, memory, __func__);
    return outcome;
}
// Page-locked, and accessible to the device.
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    *memory = bytes ? allocate(Memory::pinned, bytes, __func__) : nullptr;
    return *memory || bytes == 0 ? cudaSuccess : said(cudaErrorMemoryAllocation);
}
// It promises no wait for copies under way.
cudaError_t cudaFreeHost(void* memory) {
    DOES_AND_MAY_FAIL(cudaErrorInvalidValue);
    if (memory) give_back(Memory::pinned, memory, __func__);
    return outcome;
}
// The direction is checked against the pointers. Asynchronous copies of memory that is not page-locked "may" be
// synchronous: nobody may lean on it, so here they are not.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    MAY_FAIL(cudaErrorInvalidValue);
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (is_device(to) != to_device || is_device(from) != from_device) return said(cudaErrorInvalidValue);
    of_stream({.kind = Kind::copy, .to = address_of(to), .from = address_of(from), .bytes = bytes, .seconds = 1e-6},
              stream, __func__);
    return cudaSuccess;
}
// Sets each byte to the value's lowest. It may return before that is done, and run beside work of other streams.
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
    MAY_FAIL(cudaErrorInvalidValue);
    if (!is_device(memory)) return said(cudaErrorInvalidValue);
    of_stream({.kind = Kind::fill, .value = std::uint32_t(value), .to = address_of(memory), .bytes = bytes,
               .seconds = 1e-6}, stream, __func__);
    return cudaSuccess;
}

// ---- streams

// Work in the stream runs beside that of the default stream, with no order between the two. (Streams that are ordered
// with it are not stood in for: the program has none.)
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    if (flags != cudaStreamNonBlocking) stop("a stream that waits for the default one is not stood in for");
    *stream = new CUstream_st{++streams};
    made(*stream, kStream);
    return cudaSuccess;
}
// Returns at once where work is left in the stream, which is then still done.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    DOES_AND_MAY_FAIL(cudaErrorInvalidResourceHandle);
    given_back(stream, kStream);
    return outcome;
}
// Until the stream has done all that it was given.
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    DOES_AND_MAY_FAIL(cudaErrorIllegalAddress);
    const std::uint32_t site = call_site(__func__);
    if (mutation_of(site) != Mutation::skip) ask({.kind = Kind::sync_stream, .stream = stream_for(stream, site)});
    return outcome;
}
// What the stream is given from now on waits for what the event captured, which is that of the last record before this
// call; of an event that never was recorded, for nothing.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    MAY_FAIL(cudaErrorInvalidResourceHandle);
    of_stream({.kind = Kind::wait_for_event, .event = number_of(event)}, stream, __func__);
    return cudaSuccess;
}
// The function runs when the stream comes to it, in no other order; what is behind it waits. It must not call CUDA.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
    MAY_FAIL(cudaErrorInvalidValue);
    of_stream({.kind = Kind::call_host, .to = address_of(argument),
               .from = reinterpret_cast<std::uint64_t>(function), .seconds = 1e-6}, stream, __func__);
    return cudaSuccess;
}

// ---- events

// For the current device, with default flags: it takes times, and a host that waits for it spins.
cudaError_t cudaEventCreate(cudaEvent_t* event) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    return make_event(event, cudaEventDefault);
}
// With cudaEventDisableTiming it needs to take no time, with cudaEventBlockingSync a host that waits for it sleeps.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    MAY_FAIL(cudaErrorMemoryAllocation);
    return make_event(event, flags);
}
// May be called while work that the event captured is under way; who waits for it still waits for that.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    DOES_AND_MAY_FAIL(cudaErrorInvalidResourceHandle);
    given_back(event, kEvent);
    send({.kind = Kind::destroy_event, .event = event->number});
    return outcome;
}
// Captures what the stream was given before this call; a later record replaces it.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    MAY_FAIL(cudaErrorInvalidResourceHandle);
    // those that take times are told apart: another stream's time is no other result
    of_stream({.kind = Kind::record, .event = number_of(event)}, stream,
              event->timed ? "cudaEventRecord(timed)" : __func__);
    return cudaSuccess;
}
// Whether all that was captured is done; of an event that never was recorded: yes. "Not ready" is no error.
cudaError_t cudaEventQuery(cudaEvent_t event) {
    MAY_FAIL(cudaErrorIllegalAddress);
    return ask({.kind = Kind::query_event, .event = number_of(event)}) != 0 ? cudaSuccess : cudaErrorNotReady;
}
// Until all is done that the event captured; of one that never was recorded, at once.
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    DOES_AND_MAY_FAIL(cudaErrorIllegalAddress);
    const std::uint32_t site = call_site(__func__);
    if (mutation_of(site) != Mutation::skip) ask({.kind = Kind::sync_event, .event = number_of(event)});
    return outcome;
}
// Between two events that were recorded, with timing, and are done.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    MAY_FAIL(cudaErrorInvalidResourceHandle);
    if (!begin->timed || !end->timed) return said(cudaErrorInvalidResourceHandle);
    const double seconds = ask({.kind = Kind::elapsed, .event = number_of(begin), .other_event = number_of(end)});
    if (seconds == kNeverRecorded) return said(cudaErrorInvalidResourceHandle);
    if (seconds == kNotDone) return said(cudaErrorNotReady);
    *milliseconds = float(seconds * 1e3);
    return cudaSuccess;
}

// ---- what cuDNN's frontend alone would call, for plans that its stand-in never makes

#define NEVER(...)                                                                    \
    cudaError_t __VA_ARGS__ {                                                         \
        stop(std::string(__func__) + " is not stood in for; nothing should call it"); \
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
