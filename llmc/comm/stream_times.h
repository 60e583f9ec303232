// stream_times.h - the total time of intervals of a stream, measured without synchronizing with it
#pragma once
#include <deque>
#include <memory>

#include "kernels/device/stream.h"

namespace llmc {

class StreamTimes {
public:
    void start(device::StreamRef stream) {
        if (free_.empty()) free_.push_back(std::make_unique<device::Timer>());
        open_ = std::move(free_.front());
        free_.pop_front();
        open_->start(stream);
    }
    void stop(device::StreamRef stream) {  // without a start(): no-op
        if (!open_) return;
        open_->stop(stream);
        enqueued_.push_back(std::move(open_));
    }
    // The total of all intervals that the stream has completed.
    double seconds() {
        for (; !enqueued_.empty() && enqueued_.front()->is_done(); enqueued_.pop_front()) {
            seconds_ += enqueued_.front()->seconds();
            free_.push_back(std::move(enqueued_.front()));
        }
        return seconds_;
    }

private:
    std::unique_ptr<device::Timer> open_;
    std::deque<std::unique_ptr<device::Timer>> enqueued_, free_;  // in the order of the stream
    double seconds_ = 0;
};

}  // namespace llmc
