// stream_host.cpp - stream.h on a CPU
#include "kernels/device/stream.h"

#include <omp.h>

namespace device {

Stream::Stream(Priority) {}
Stream::~Stream() = default;
void Stream::sync() const {}

Event::Event(bool) {}
Event::~Event() = default;
void Event::record(StreamRef) { seconds_ = omp_get_wtime(); }
bool Event::is_done() const { return true; }
void Event::sync() const {}
double Event::seconds_since(const Event& earlier) const { return seconds_ - earlier.seconds_; }

void wait(StreamRef, const Event&) {}
void call_on_host(StreamRef, std::function<void()> work) { work(); }

void sync(StreamRef) {}

}  // namespace device
