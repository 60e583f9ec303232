// background_task_test.cpp - start(), wait() and exceptions of a BackgroundTask
#include <atomic>
#include <stdexcept>

#include "kernels/base/error.h"
#include "llmc/base/background_task.h"
#include "test/support/catch.h"

using namespace llmc;

TEST_CASE("a background task runs once per start and rethrows exceptions", "[background_task]") {
    std::atomic<int> calls = 0;
    BackgroundTask task([&] { if (++calls == 2) throw std::runtime_error("second"); });
    task.wait();  // nothing started
    CHECK(calls == 0);
    task.start();
    CHECK(task.started());
    CHECK_THROWS_AS(task.start(), Error);
    task.wait();
    CHECK_FALSE(task.started());
    task.start();
    CHECK_THROWS_WITH(task.wait(), "second");
    task.wait();  // the exception is thrown only once
    task.start();
    task.wait();
    CHECK(calls == 3);
}
