// clock.h - the time that has passed
#pragma once
#include <chrono>

namespace llmc {

// Of a clock that only moves forward.
inline double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace llmc
