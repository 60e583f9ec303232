// background_task.h - a function that a dedicated thread runs once per start(), concurrently with the owner
#pragma once
#include <atomic>
#include <exception>
#include <functional>
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
    bool done() const { return state_ != kRunning; }
    bool started() const { return started_; }  // start() was called and wait() not yet

private:
    static constexpr int kIdle = 0, kRunning = 1, kEnds = 2;
    void run();

    std::function<void()> work_;
    bool started_ = false;            // only the owner uses it
    std::atomic<int> state_ = kIdle;  // kRunning: the thread's turn, which ends with kIdle; otherwise the owner's
    std::exception_ptr thrown_;       // used by the one whose turn it is

    std::thread thread_;  // declared last: it starts after all other members are constructed
};

}  // namespace llmc
