// comm_stream_cuda.cpp - the communication stream as a CUDA stream; the driver calls host work in stream order
#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "llmc/comm/comm_stream.h"
#include "llmc/comm/stream_times.h"

namespace llmc {

struct CommStream::State {
    // more than the collectives of a step that are enqueued and not yet used
    static constexpr std::int64_t kPoints = 128;
    // A bucket's collective starts while the backward pass has blocks to start.
    device::Stream stream{device::Stream::Priority::highest};
    device::Event computed;
    std::vector<device::Event> events = std::vector<device::Event>(kPoints);
    std::int64_t last = 0;
    device::StreamRef waiter = nullptr;  // the stream that waited last,
    std::int64_t waited_for = 0;         // and its latest point: a model waits again in every forward pass
    StreamTimes busy, waited;            // of this stream and of the compute stream

    std::mutex mutex;  // guards `failure`, which a driver thread writes
    std::exception_ptr failure;

    // The event of `point`, or the oldest stored one, which is later.
    device::Event& event(std::int64_t point) { return events[std::max(point, last - kPoints + 1) % kPoints]; }
};

CommStream::CommStream() : state_(std::make_unique<State>()) {}
CommStream::~CommStream() {
    try {
        state_->stream.sync();
    } catch (...) {  // wait() or check() has reported the failure, or no caller needs the result
    }
}

void CommStream::after(device::StreamRef compute) {
    check();
    state_->computed.record(compute);
    device::wait(state_->stream, state_->computed);
    state_->busy.start(state_->stream);
}
void CommStream::enqueue(std::function<void(device::StreamRef)> work) {
    check();
    work(state_->stream);
}
void CommStream::enqueue_host(std::function<void()> work) {
    check();
    device::call_on_host(state_->stream, [state = state_.get(), work = std::move(work)] {
        {
            const std::lock_guard lock(state->mutex);
            if (state->failure) return;
        }
        try {
            work();
        } catch (...) {
            const std::lock_guard lock(state->mutex);
            state->failure = std::current_exception();
        }
    });
}
std::int64_t CommStream::point() {
    check();
    state_->busy.stop(state_->stream);
    ++state_->last;
    state_->event(state_->last).record(state_->stream);
    return state_->last;
}
void CommStream::wait(device::StreamRef compute, std::int64_t point) {
    check();
    if (compute != state_->waiter) state_->waiter = compute, state_->waited_for = 0;
    if (point <= state_->waited_for) return;
    state_->waited_for = point;
    state_->waited.start(compute);
    device::wait(compute, state_->event(point));
    state_->waited.stop(compute);
}
void CommStream::sync(std::int64_t point) {
    if (point > 0) state_->event(point).sync();
    check();
}
CommTimes CommStream::times() const { return {state_->busy.seconds(), state_->waited.seconds()}; }
void CommStream::check() const {
    const std::lock_guard lock(state_->mutex);
    if (state_->failure) std::rethrow_exception(state_->failure);
}

}  // namespace llmc
