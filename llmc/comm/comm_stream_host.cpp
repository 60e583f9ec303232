// comm_stream_host.cpp - the communication stream as a queue and a worker thread
#include <omp.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>

#include "kernels/base/start_thread.h"
#include "llmc/comm/comm_stream.h"

namespace llmc {

struct CommStream::State {
    std::mutex mutex;  // guards the members below, except `thread`
    std::condition_variable_any changed;
    std::deque<std::function<void(device::StreamRef)>> queue;
    std::int64_t enqueued = 0, finished = 0;
    std::exception_ptr failure;
    CommTimes times;

    // declared last: starts after all other members are constructed, and ends, with the queue empty, before them
    std::jthread thread = start_thread<std::jthread>([this](const std::stop_token& stop) { run(stop); });

    void run(const std::stop_token& stop) {
        omp_set_num_threads(1);
        std::unique_lock lock(mutex);
        while (true) {
            if (!changed.wait(lock, stop, [&] { return !queue.empty(); })) return;
            const auto work = std::move(queue.front());
            queue.pop_front();
            if (!failure) {
                lock.unlock();
                std::exception_ptr thrown;
                const double began = omp_get_wtime();
                try {
                    work(nullptr);
                } catch (...) {
                    thrown = std::current_exception();
                }
                lock.lock();
                times.busy += omp_get_wtime() - began;
                failure = thrown;
            }
            ++finished;
            changed.notify_all();
        }
    }
};

CommStream::CommStream() : state_(std::make_unique<State>()) {}
CommStream::~CommStream() = default;

void CommStream::after(device::StreamRef) { check(); }
void CommStream::enqueue(std::function<void(device::StreamRef)> work) {
    check();
    {
        const std::lock_guard lock(state_->mutex);
        state_->queue.push_back(std::move(work));
        ++state_->enqueued;
    }
    state_->changed.notify_all();
}
void CommStream::enqueue_host(std::function<void()> work) {
    enqueue([work = std::move(work)](device::StreamRef) { work(); });
}
std::int64_t CommStream::point() {
    check();
    const std::lock_guard lock(state_->mutex);
    return state_->enqueued;
}
void CommStream::wait(device::StreamRef, std::int64_t point) {
    const double began = omp_get_wtime();
    sync(point);
    const std::lock_guard lock(state_->mutex);
    state_->times.waited += omp_get_wtime() - began;
}
void CommStream::sync(std::int64_t point) {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->finished >= point || state_->failure; });
    if (state_->failure) std::rethrow_exception(state_->failure);
}
CommTimes CommStream::times() const {
    const std::lock_guard lock(state_->mutex);
    return state_->times;
}
void CommStream::check() const {
    const std::lock_guard lock(state_->mutex);
    if (state_->failure) std::rethrow_exception(state_->failure);
}

}  // namespace llmc
