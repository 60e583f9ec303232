// memory.h - device memory, and copies to and from it: memory_host.cpp | memory_cuda.cpp
//
// On a CPU, device memory is host memory.
#pragma once
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/device/stream.h"

namespace device {

// Owns zero or more bytes of device memory, aligned to kernels::kTensorAlignment. The memory is uninitialized.
class Memory {
public:
    Memory() = default;
    explicit Memory(std::size_t bytes);  // throws a run-time Error that names the size if the allocation fails
    using Free = std::function<void(std::byte*)>;
    // Of another allocator, which `free` returns it to.
    Memory(std::byte* data, std::size_t bytes, Free free) : data_(data, std::move(free)), bytes_(bytes) {}
    std::byte* data() const { return data_.get(); }
    std::size_t bytes() const { return bytes_; }

private:
    std::unique_ptr<std::byte, Free> data_;
    std::size_t bytes_ = 0;
};

// Bytes that a Memory of `bytes` occupies after rounding up, for memory plans.
std::size_t allocation_size(std::size_t bytes);

// Owns host memory whose copies overlap with kernels (page-locked on a GPU build).
class PinnedMemory {
public:
    PinnedMemory() = default;
    explicit PinnedMemory(std::size_t bytes);
    std::byte* data() const { return data_.get(); }

private:
    struct Free {
        void operator()(std::byte* data) const noexcept;
    };
    std::unique_ptr<std::byte, Free> data_;
};

// All enqueue on `stream`. The host memory must stay valid and unchanged until the stream has passed this point.
void copy_to_device(void* device, const void* host, std::size_t bytes, StreamRef stream);
void copy_to_host(void* host, const void* device, std::size_t bytes, StreamRef stream);
void copy_on_device(void* to, const void* from, std::size_t bytes, StreamRef stream);  // the arrays must not overlap
void fill_zero(void* device, std::size_t bytes, StreamRef stream);

// Synchronizes the stream when an exception leaves its scope before the scope's own sync(): host memory that is
// declared before this object then outlives the copies from and to it.
class SyncIfThrown {
public:
    explicit SyncIfThrown(StreamRef stream) : stream_(stream) {}
    ~SyncIfThrown() {
        if (std::uncaught_exceptions() == thrown_before_) return;
        try {
            sync(stream_);
        } catch (...) {  // the exception in flight already reports the failure
        }
    }
    SyncIfThrown(const SyncIfThrown&) = delete;

private:
    StreamRef stream_;
    int thrown_before_ = std::uncaught_exceptions();
};

// Whether the host may access device memory directly.
bool memory_is_host_memory();

// Scratch memory that grows to its largest request. Users share it one after another: growing synchronizes with the
// device and discards the contents.
class Workspace {
public:
    std::byte* at_least(std::size_t bytes) {
        if (bytes > memory_.bytes()) {
            memory_ = Memory();  // free the old memory first
            memory_ = Memory(bytes);
        }
        return memory_.data();
    }
    std::byte* data() const { return memory_.data(); }
    std::size_t bytes() const { return memory_.bytes(); }

private:
    Memory memory_;
};

// Owns an array of T on the device.
template <class T>
class Array {
public:
    Array() = default;
    explicit Array(std::size_t size) : memory_(size * sizeof(T)), size_(size) {}
    explicit Array(Memory memory) : memory_(std::move(memory)), size_(memory_.bytes() / sizeof(T)) {}
    Array(std::span<const T> host, StreamRef stream) : Array(host.size()) { upload(host, stream); }
    std::span<T> span() const { return {reinterpret_cast<T*>(memory_.data()), size_}; }
    std::size_t size() const { return size_; }
    void upload(std::span<const T> host, StreamRef stream) {
        copy_to_device(memory_.data(), host.data(), host.size_bytes(), stream);
    }
    void zero(StreamRef stream) { fill_zero(memory_.data(), memory_.bytes(), stream); }
    std::vector<T> download(StreamRef stream) const {  // waits for the stream
        std::vector<T> host(size_);
        copy_to_host(host.data(), memory_.data(), memory_.bytes(), stream);
        sync(stream);
        return host;
    }

private:
    Memory memory_;
    std::size_t size_ = 0;
};

}  // namespace device
