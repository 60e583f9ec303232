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
    // With the highest priority, the blocks of a kernel start before waiting blocks of other streams.
    enum class Priority { normal, highest };
    explicit Stream(Priority priority = Priority::normal);
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
    Event() : Event(false) {}
    explicit Event(bool timed);  // timed: for seconds_since()
    ~Event();
    Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)), seconds_(other.seconds_) {}
    Event& operator=(Event&&) = delete;
    void record(StreamRef stream);  // captures all work enqueued so far
    bool is_done() const;           // whether the stream has passed the point; true before the first record
    void sync() const;              // waits until is_done()
    double seconds_since(const Event& earlier) const;  // of the same stream, both timed; waits until is_done()
    void* handle() const { return event_; }  // cudaEvent_t, or nullptr on a CPU

private:
    void* event_ = nullptr;
    double seconds_ = 0;  // on a CPU, the time of record()
};

// Two points in a stream and the time between them.
class Timer {
public:
    void start(StreamRef stream) { start_.record(stream); }
    void stop(StreamRef stream) { stop_.record(stream); }
    bool is_done() const { return stop_.is_done(); }                // whether the stream has passed both
    double seconds() const { return stop_.seconds_since(start_); }  // waits until the stream has passed both

private:
    Event start_{true}, stop_{true};
};

// Waits for all work enqueued so far.
void sync(StreamRef stream);
// Work that is enqueued on `stream` after this call runs once the event is done.
void wait(StreamRef stream, const Event& event);
// Enqueues `work`, which runs on a host thread; later work on `stream` waits for it. It must not throw or call the
// device API.
void call_on_host(StreamRef stream, std::function<void()> work);

}  // namespace device
