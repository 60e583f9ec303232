// stream.h - streams, events and timers of the device: stream_host.cpp | stream_cuda.cpp
//
// As in CUDA and CCCL, wait() makes a stream wait and returns immediately; sync() makes the host wait. On a CPU the
// only stream is nullptr, and enqueued work has finished when the call that enqueues it returns.
#pragma once
#include <functional>
#include <utility>

#include "kernels/device/types.h"

namespace device {

// Owns a stream; its work runs in order.
class Stream {
public:
    Stream();
    ~Stream();
    Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
    Stream& operator=(Stream&&) = delete;
    operator StreamRef() const { return stream_; }
    void sync() const;  // waits for all work enqueued so far; throws a run-time Error if any of it failed

private:
    StreamRef stream_ = nullptr;
};

// A point in a stream.
class Event {
public:
    Event();
    ~Event();
    Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    Event& operator=(Event&&) = delete;
    void record(StreamRef stream);  // captures all work enqueued so far
    bool is_done() const;           // whether the stream has passed the point; true before the first record
    void sync() const;              // waits until is_done()
    void* handle() const { return event_; }  // cudaEvent_t, or nullptr on a CPU

private:
    void* event_ = nullptr;
};

// Two points in a stream and the time between them.
class Timer {
public:
    Timer();
    ~Timer();
    Timer(const Timer&) = delete;
    void start(StreamRef stream);
    void stop(StreamRef stream);
    bool is_done() const;    // whether the stream has passed both
    double seconds() const;  // from start to stop; waits until the stream has passed both

private:
    struct Events {
        void *start = nullptr, *stop = nullptr;
    };
    Events events_;  // cudaEvent_t; not used on a CPU
    double start_seconds_ = 0, stop_seconds_ = 0;
};

// Waits for all work enqueued so far.
void sync(StreamRef stream);
// Work that is enqueued on `stream` after this call runs once the event is done.
void wait(StreamRef stream, const Event& event);
// Enqueues `work`, which runs on a host thread; later work on `stream` waits for it. It must not throw or call the
// device API.
void call_on_host(StreamRef stream, std::function<void()> work);

}  // namespace device
