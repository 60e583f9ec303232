// host_counter.h - a counter that kernel threads of several blocks increment: a tool of the executor's tests, as
// kernels use no atomics
#pragma once

namespace test {

// Adds `amount` and returns the old value. The race detector does not see the access.
[[gnu::noinline, gnu::no_sanitize("thread")]] inline int add_on_host(int* counter, int amount) {
    return __atomic_fetch_add(counter, amount, __ATOMIC_SEQ_CST);
}

}  // namespace test
