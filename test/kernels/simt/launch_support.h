// launch_support.h - tools of the executor's tests: the error of a launch, and what kernel threads of several blocks
// count together, as kernels use no atomics
#pragma once
#include <string>

#include "kernels/base/error.h"
#include "kernels/simt/simt.h"
#include "test/support/scratch_folder.h"

// The number of the next line.
#define NEXT_LINE (__LINE__ + 1)

namespace test {

// Adds `amount` and returns the old value. The race detector does not see the access.
[[gnu::noinline, gnu::no_sanitize("thread")]] inline int add_on_host(int* counter, int amount) {
    return __atomic_fetch_add(counter, amount, __ATOMIC_SEQ_CST);
}

// The number of its objects.
struct CountsLife {
    explicit CountsLife(int* alive) : alive(alive) { add_on_host(alive, 1); }
    ~CountsLife() { add_on_host(alive, -1); }
    int* alive;
};

// The message of one line that a launch throws; "accepted": none.
template <auto Kernel, class... Args>
std::string error_of_launch(const simt::LaunchConfig& config, Args... args) {
    const std::string message = error_of([&] { simt::launch<Kernel>(config, args...); }, base::Blame::runtime);
    CHECK_THAT(message, !Contains("\n"));
    return message;
}

}  // namespace test
