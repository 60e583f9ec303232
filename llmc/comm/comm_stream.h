// comm_stream.h - a stream beside the one that computes, for work that alternates between device and host:
// comm_stream_host.cpp | comm_stream_cuda.cpp
//
// What is enqueued runs in order, beside the caller. What is ready when:
//   after(compute)        what is enqueued from now on sees all that `compute` was given before this call, and may
//                         overwrite what that reads
//   enqueue, enqueue_host the call returns at once; the work has not begun, or is under way, or is done
//   wait(compute, point)  what `compute` is given from now on sees all that was enqueued here before that point
//   sync(point)           the same for the host
// There is no other order between the two streams: memory that the work touches belongs to it from the enqueueing until
// a wait() or sync() behind it.
//
// On a GPU both are CUDA streams, after() and wait() are events and the host never waits in them. On a CPU compute runs
// inline, so after() finds its work done and wait() blocks; the work is done by one thread, whose kernels use one core:
// it runs beside those that compute.
#pragma once
#include <functional>
#include <memory>

#include "kernels/device/stream.h"

namespace llmc {

// Seconds since the start: that work took on the communication stream, and that compute waited for it. Of a GPU's, what
// both streams have passed.
struct CommTimes {
    double busy = 0, waited = 0;
};

class CommStream {
public:
    CommStream();
    ~CommStream();  // waits for all that was enqueued
    CommStream(const CommStream&) = delete;
    CommStream& operator=(const CommStream&) = delete;

    void after(device::StreamRef compute);
    // copies and kernels, which `work` enqueues on the stream that it is given
    void enqueue(std::function<void(device::StreamRef)> work);
    // host code; it must not touch the device. Runs when all that was enqueued before has finished
    void enqueue_host(std::function<void()> work);
    std::int64_t point();                            // what has been enqueued so far; points are numbered upwards
    // of a point that another 128 followed it may wait for a later one
    void wait(device::StreamRef compute, std::int64_t point);
    void sync(std::int64_t point);                   // throws what failed before the point

    CommTimes times() const;

    // Throws the first exception that any work threw so far; after it no more work is begun. All calls above do the
    // same.
    void check() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace llmc
