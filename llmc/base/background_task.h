// background_task.h - a function that a dedicated thread runs once per start(), concurrently with the owner
#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace llmc {

class BackgroundTask {
public:
    // `work` runs on the task's thread, one call per start(). It must return without outside help.
    explicit BackgroundTask(std::function<void()> work);
    ~BackgroundTask();  // waits for a running call and drops its exception
    BackgroundTask(const BackgroundTask&) = delete;
    BackgroundTask& operator=(const BackgroundTask&) = delete;

    // Starts one call. The owner must have waited for the previous one.
    void start();
    // Blocks until the call started by start() has returned; returns immediately if there is none. Afterwards the
    // writes of `work` are visible. Rethrows the exception of `work`.
    void wait();
    // Whether wait() would return immediately.
    bool done() const;
    bool started() const { return started_; }  // start() was called and wait() not yet

private:
    void run();

    std::function<void()> work_;
    bool started_ = false;  // only the owner uses it

    mutable std::mutex mutex_;  // guards the next three members
    std::condition_variable changed_;
    bool busy_ = false, stop_ = false;
    std::exception_ptr thrown_;

    std::thread thread_;  // declared last: it starts after all other members are constructed
};

}  // namespace llmc
