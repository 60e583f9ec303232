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
    state_.wait(kRunning);
    state_ = kEnds;
    state_.notify_one();
    thread_.join();
}

void BackgroundTask::start() {
    require(!started_, "a background task", "still running", "wait() before the next start()");
    started_ = true;
    state_ = kRunning;
    state_.notify_one();
}

void BackgroundTask::wait() {
    started_ = false;
    state_.wait(kRunning);
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

void BackgroundTask::run() {
    while (true) {
        state_.wait(kIdle);
        if (state_ == kEnds) return;
        try {
            work_();
        } catch (...) {
            thrown_ = std::current_exception();
        }
        state_ = kIdle;
        state_.notify_one();
    }
}

}  // namespace llmc
