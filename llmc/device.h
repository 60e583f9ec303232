// device.h - memory and streams of the device this build is for: device_cpu.cpp | device_cuda.cpp
//
// On a CPU device memory is host memory, the only stream is nullptr, and enqueued work has finished when the call returns.
#pragma once
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/types.h"

namespace llmc {

using kernels::Stream;

struct DeviceInfo {
    std::string kind;            // "cpu" or "cuda"
    std::string name;            // as the machine calls itself
    std::string id;              // of a GPU: no other one has it; empty: a CPU
    std::size_t memory_total = 0, memory_free = 0;  // bytes; 0: unknown
    std::size_t cache = 0;       // bytes of the last cache before memory; 0: unknown
    int threads = 1;             // CPU threads in use
    std::optional<double> peak_flops_bf16, peak_flops_tf32, peak_flops_fp32;  // dense, from the vendor's data sheet; empty: unknown
};
// Chooses the device of this process and the number of CPU threads. Throws Error where the machine has no such device.
DeviceInfo open_device(int threads, int index = 0);  // threads <= 0: every core this process may use; index: which of several GPUs

// GPUs that this process may use; 0 in a build for CPUs.
int device_count();

// Owner of zero or more bytes of device memory, aligned to kTensorAlignment. The contents are undefined until written.
class DeviceMemory {
public:
    DeviceMemory() = default;
    explicit DeviceMemory(std::size_t bytes);  // throws a run-time Error that names the size when there is no room
    ~DeviceMemory();
    DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    DeviceMemory& operator=(DeviceMemory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    std::byte* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
};

// Owner of a stream on which kernels run in order.
class DeviceStream {
public:
    DeviceStream();
    ~DeviceStream();
    DeviceStream(DeviceStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
    DeviceStream& operator=(DeviceStream&&) = delete;
    operator Stream() const { return stream_; }
    void wait() const;  // until everything enqueued so far has finished; throws a run-time Error if any of it failed

private:
    Stream stream_ = nullptr;
};

// A point in a stream.
class DeviceEvent {
public:
    DeviceEvent();
    ~DeviceEvent();
    DeviceEvent(DeviceEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    DeviceEvent& operator=(DeviceEvent&&) = delete;
    void record(Stream stream);  // the point is what has been enqueued so far
    bool reached() const;        // true before the first record
    void wait() const;           // until the stream has passed the point
    void* handle() const { return event_; }  // cudaEvent_t, or nullptr on a CPU

private:
    void* event_ = nullptr;
};

// Two points in a stream and the time between them.
class DeviceTimer {
public:
    DeviceTimer();
    ~DeviceTimer();
    DeviceTimer(const DeviceTimer&) = delete;
    void start(Stream stream);
    void stop(Stream stream);
    bool stopped() const;    // the stream has passed both
    double seconds() const;  // from start to stop; waits until the stream has passed both

private:
    void *start_ = nullptr, *stop_ = nullptr;
    double start_seconds_ = 0, stop_seconds_ = 0;
};

// What `stream` is given from now on runs when the event has been reached. Does not wait.
void hold_until(Stream stream, const DeviceEvent& event);
// `work` runs on a host thread when `stream` gets there; what is enqueued later waits for it. It must neither throw nor touch the device.
void call_on_host(Stream stream, std::function<void()> work);

// Owner of host memory from which copies run beside kernels (page-locked where there is a GPU).
class HostMemory {
public:
    HostMemory() = default;
    explicit HostMemory(std::size_t bytes);
    ~HostMemory();
    HostMemory(HostMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
    HostMemory& operator=(HostMemory&& other) noexcept {
        std::swap(data_, other.data_);
        return *this;
    }
    std::byte* data() const { return data_; }

private:
    std::byte* data_ = nullptr;
};

// All enqueue on `stream`. The host memory must stay as it is until the stream has passed this point.
void copy_to_device(void* device, const void* host, std::size_t bytes, Stream stream);
void copy_to_host(void* host, const void* device, std::size_t bytes, Stream stream);
void copy_on_device(void* to, const void* from, std::size_t bytes, Stream stream);  // neither may overlap the other
void fill_zero(void* device, std::size_t bytes, Stream stream);
void wait(Stream stream);

// Whether the host may read and write device memory where it lies.
bool device_memory_is_host_memory();
// Device memory as the host can read it: itself on a CPU; else copied into `buffer`, after waiting for `stream`.
const void* on_host(const void* device, std::size_t bytes, std::vector<std::byte>& buffer, Stream stream);

// An array of T on the device.
template <class T>
class DeviceArray {
public:
    DeviceArray() = default;
    explicit DeviceArray(std::size_t size) : memory_(size * sizeof(T)), size_(size) {}
    DeviceArray(std::span<const T> host, Stream stream) : DeviceArray(host.size()) { upload(host, stream); }
    std::span<T> span() const { return {reinterpret_cast<T*>(memory_.data()), size_}; }
    std::size_t size() const { return size_; }
    void upload(std::span<const T> host, Stream stream) { copy_to_device(memory_.data(), host.data(), host.size_bytes(), stream); }
    void zero(Stream stream) { fill_zero(memory_.data(), memory_.bytes(), stream); }
    std::vector<T> download(Stream stream) const {  // waits for the stream
        std::vector<T> host(size_);
        copy_to_host(host.data(), memory_.data(), memory_.bytes(), stream);
        wait(stream);
        return host;
    }

private:
    DeviceMemory memory_;
    std::size_t size_ = 0;
};

}  // namespace llmc
