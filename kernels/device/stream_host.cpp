// stream_host.cpp - stream.h on a CPU
#include "kernels/device/stream.h"

#include <omp.h>

namespace device {

Stream::Stream() = default;
Stream::~Stream() = default;
void Stream::sync() const {}

Event::Event() = default;
Event::~Event() = default;
void Event::record(StreamRef) {}
bool Event::is_done() const { return true; }
void Event::sync() const {}

Timer::Timer() = default;
Timer::~Timer() = default;
void Timer::start(StreamRef) { start_seconds_ = omp_get_wtime(); }
void Timer::stop(StreamRef) { stop_seconds_ = omp_get_wtime(); }
bool Timer::is_done() const { return true; }
double Timer::seconds() const { return stop_seconds_ - start_seconds_; }

void wait(StreamRef, const Event&) {}
void call_on_host(StreamRef, std::function<void()> work) { work(); }

void sync(StreamRef) {}

}  // namespace device
