// stream_cuda.cpp - stream.h on a GPU
#include "kernels/device/stream.h"

#include <memory>

#include "kernels/device/checked_cuda.h"

namespace device {
namespace {

bool passed(void* event) {
    const auto status = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (status == cudaErrorNotReady) return false;
    throw_fault(fault_of(status), "cudaEventQuery()", __FILE__, __LINE__);
    return true;
}

}  // namespace

Stream::Stream() { CHECKED(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
Stream::~Stream() {
    if (stream_) cudaStreamDestroy(stream_);
}
void Stream::sync() const { device::sync(stream_); }

Event::Event() {
    cudaEvent_t event = nullptr;
    CHECKED(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    event_ = event;
}
Event::~Event() {
    if (event_) cudaEventDestroy(static_cast<cudaEvent_t>(event_));
}
void Event::record(StreamRef stream) { CHECKED(cudaEventRecord(static_cast<cudaEvent_t>(event_), stream)); }
bool Event::is_done() const { return passed(event_); }
void Event::sync() const { CHECKED(cudaEventSynchronize(static_cast<cudaEvent_t>(event_))); }

Timer::Timer() {
    cudaEvent_t start = nullptr, stop = nullptr;
    CHECKED(cudaEventCreate(&start));
    events_.start = start;
    CHECKED(cudaEventCreate(&stop));
    events_.stop = stop;
}
Timer::~Timer() {
    if (events_.start) cudaEventDestroy(static_cast<cudaEvent_t>(events_.start));
    if (events_.stop) cudaEventDestroy(static_cast<cudaEvent_t>(events_.stop));
}
void Timer::start(StreamRef stream) { CHECKED(cudaEventRecord(static_cast<cudaEvent_t>(events_.start), stream)); }
void Timer::stop(StreamRef stream) { CHECKED(cudaEventRecord(static_cast<cudaEvent_t>(events_.stop), stream)); }
bool Timer::is_done() const { return passed(events_.stop); }
double Timer::seconds() const {
    CHECKED(cudaEventSynchronize(static_cast<cudaEvent_t>(events_.stop)));
    float milliseconds = 0;
    CHECKED(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(events_.start),
                                 static_cast<cudaEvent_t>(events_.stop)));
    return milliseconds * 1e-3;
}

void wait(StreamRef stream, const Event& event) {
    CHECKED(cudaStreamWaitEvent(stream, static_cast<cudaEvent_t>(event.handle()), 0));
}
void call_on_host(StreamRef stream, std::function<void()> work) {
    auto call = std::make_unique<std::function<void()>>(std::move(work));
    const auto run = [](void* argument) {
        (*std::unique_ptr<std::function<void()>>(static_cast<std::function<void()>*>(argument)))();
    };
    CHECKED(cudaLaunchHostFunc(stream, run, call.get()));
    call.release();  // `run` owns it now
}

void sync(StreamRef stream) { CHECKED(cudaStreamSynchronize(stream)); }

}  // namespace device
