// background_task.cpp - the worker thread of a BackgroundTask, and the synchronization with its owner
#include "llmc/base/background_task.h"

#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/start_thread.h"

namespace llmc {

BackgroundTask::BackgroundTask(std::function<void()> work)
    : work_(std::move(work)),
      thread_(start_thread([this] { run(); })) {}

BackgroundTask::~BackgroundTask() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void BackgroundTask::start() {
    require(!started_, "a background task", "still running", "wait() before the next start()");
    started_ = true;
    {
        const std::lock_guard lock(mutex_);
        busy_ = true;
    }
    changed_.notify_all();
}

void BackgroundTask::wait() {
    if (!std::exchange(started_, false)) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !busy_; });
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

bool BackgroundTask::done() const {
    const std::lock_guard lock(mutex_);
    return !busy_;
}

void BackgroundTask::run() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return busy_ || stop_; });
        if (stop_) return;
        lock.unlock();
        std::exception_ptr thrown;
        try {
            work_();
        } catch (...) {
            thrown = std::current_exception();
        }
        lock.lock();
        thrown_ = std::move(thrown);
        busy_ = false;
        changed_.notify_all();
    }
}

}  // namespace llmc
