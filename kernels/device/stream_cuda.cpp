// stream_cuda.cpp - stream.h on a GPU
#include "kernels/device/stream.h"

#include <memory>

#include "kernels/device/checked_cuda.h"

namespace device {
namespace {

cudaEvent_t event_of(const Event& event) { return static_cast<cudaEvent_t>(event.handle()); }

}  // namespace

Stream::Stream(Priority priority) {
    int lowest = 0, highest = 0;  // the highest is the smallest number
    if (priority == Priority::highest) CHECKED(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CHECKED(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest));
}
Stream::~Stream() {
    if (stream_) cudaStreamDestroy(stream_);
}
void Stream::sync() const { device::sync(stream_); }

Event::Event(bool timed) {
    cudaEvent_t event = nullptr;
    CHECKED(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
    event_ = event;
}
Event::~Event() {
    if (event_) cudaEventDestroy(event_of(*this));
}
void Event::record(StreamRef stream) { CHECKED(cudaEventRecord(event_of(*this), stream)); }
bool Event::is_done() const {
    const auto status = cudaEventQuery(event_of(*this));
    if (status == cudaErrorNotReady) return false;
    throw_fault(fault_of(status), "cudaEventQuery()", __FILE__, __LINE__);
    return true;
}
void Event::sync() const { CHECKED(cudaEventSynchronize(event_of(*this))); }
double Event::seconds_since(const Event& earlier) const {
    sync();
    float milliseconds = 0;
    CHECKED(cudaEventElapsedTime(&milliseconds, event_of(earlier), event_of(*this)));
    return milliseconds * 1e-3;
}

void wait(StreamRef stream, const Event& event) { CHECKED(cudaStreamWaitEvent(stream, event_of(event), 0)); }
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
