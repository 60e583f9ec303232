// clock.h - a monotonic clock
#pragma once
#include <chrono>

namespace llmc {

// Seconds since an arbitrary point in the past.
inline double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace llmc
