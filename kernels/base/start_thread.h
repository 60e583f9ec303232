// start_thread.h - std::thread, with an error that names the limits if the system refuses to start one
#pragma once
#include <pthread.h>
#include <sys/resource.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/base/error.h"

namespace base {

// Bytes of address space that the stack of each new thread takes.
inline std::size_t stack_bytes() {
    pthread_attr_t attributes;
    std::size_t bytes = 0;
    if (pthread_attr_init(&attributes) != 0) return 0;
    pthread_attr_getstacksize(&attributes, &bytes);
    pthread_attr_destroy(&attributes);
    return bytes;
}

[[noreturn]] inline void fail_to_start_thread(const std::string& reason) {
    const auto limit = [](auto resource, const char* command, std::size_t unit, const char* unit_name) {
        rlimit found{};
        const bool known = getrlimit(resource, &found) == 0 && found.rlim_cur != RLIM_INFINITY;
        return std::string(command) + (known ? " is " + std::to_string(found.rlim_cur / unit) + unit_name
                                             : " is unlimited");
    };
    fail("a thread of this process", "not started (" + reason + ")",
         "a limit of processes and threads that allows one more, and room for its stack of " +
             std::to_string(stack_bytes() >> 20) + " MiB",
         "raise the limit that is reached (" + limit(RLIMIT_NPROC, "ulimit -u", 1, "") + ", " +
             limit(RLIMIT_AS, "ulimit -v", 1024, " KiB") + "; a container may have its own), or decrease --threads",
         Blame::runtime);
}

// Throws a run-time Error with the reason and the limits.
template <class Thread = std::thread, class Work>
Thread start_thread(Work&& work) {
    try {
        return Thread(std::forward<Work>(work));
    } catch (const std::system_error& refused) {
        fail_to_start_thread(refused.code().message());
    }
}

}  // namespace base
