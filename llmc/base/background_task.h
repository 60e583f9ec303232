// background_task.h - one piece of work, done again and again by a thread of its own while the owner does something
// else
#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace llmc {

class BackgroundTask {
public:
    // `work` runs on the task's thread, one call per start(). It must end by itself.
    explicit BackgroundTask(std::function<void()> work);
    ~BackgroundTask();  // waits for a call that is under way and drops what it throws
    BackgroundTask(const BackgroundTask&) = delete;
    BackgroundTask& operator=(const BackgroundTask&) = delete;

    // Begins one call. The previous one must have been waited for.
    void start();
    // Returns when the call begun by start() has ended, at once if there is none; what `work` wrote is then visible.
    // Rethrows what `work` threw.
    void wait();
    // Whether wait() would return at once.
    bool done() const;
    bool started() const { return started_; }  // start() without its wait() so far

private:
    void run();

    std::function<void()> work_;
    bool started_ = false;  // the owner's

    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    bool busy_ = false, stop_ = false;
    std::exception_ptr thrown_;

    std::thread thread_;  // last: runs only when all the rest is there
};

}  // namespace llmc
