// comm_stream.h - a stream for communication, overlapped with the compute stream; its work alternates between device
// and host: comm_stream_host.cpp | comm_stream_cuda.cpp
//
// Enqueued work runs in order, asynchronously to the caller. Synchronization:
//   after(compute)        work enqueued from now on starts after all work enqueued on `compute` before this call: it
//                         sees its results and may overwrite its inputs
//   enqueue, enqueue_host return immediately; the work runs at any later time
//   wait(compute, point)  work enqueued on `compute` from now on sees all that was enqueued here before `point`
//   sync(point)           blocks the host until all that was enqueued before `point` is done
// The two streams are not ordered otherwise: memory that enqueued work uses belongs to it until a later wait() or
// sync().
//
// On a GPU both are CUDA streams, this one of the highest priority; after() and wait() use events and the host never
// waits in them. On a CPU compute runs inline, so after() finds its work done and wait() blocks; one thread runs the
// enqueued work, and its kernels use one core, concurrently with the compute threads.
#pragma once
#include <functional>
#include <memory>

#include "kernels/device/stream.h"

namespace llmc {

// Total seconds since the start: work on the communication stream, and the time that compute waited for it. On a GPU
// only work that both streams have completed counts.
struct CommTimes {
    double busy = 0, waited = 0;
};

class CommStream {
public:
    CommStream();
    ~CommStream();  // waits for all enqueued work
    CommStream(const CommStream&) = delete;
    CommStream& operator=(const CommStream&) = delete;

    void after(device::StreamRef compute);
    // `work` enqueues copies and kernels on the stream that it receives
    void enqueue(std::function<void(device::StreamRef)> work);
    // host code that must not use the device; runs after all previously enqueued work
    void enqueue_host(std::function<void()> work);
    std::int64_t point();  // a point after all work enqueued so far; the numbers of points increase
    // may wait for a later point if 128 or more points follow this one
    void wait(device::StreamRef compute, std::int64_t point);
    void sync(std::int64_t point);  // throws if work before the point failed

    CommTimes times() const;

    // Throws the first exception that any work has thrown so far; no more work starts after it. All calls above throw
    // it too.
    void check() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace llmc
