// limits.h - what a launcher must know of the device that it launches on: limits_cuda.cpp | limits_host.cpp
#pragma once
#include <cstddef>

namespace device {

struct Limits {
    int multiprocessors;
    // Of shared memory that a block may have, static and dynamic together, once it has asked for them: 163 KiB on
    // compute capability 8.0, 227 on 9.0 and 10.0, 99 on 8.6, 8.9 and 12.0.
    std::size_t shared_bytes;
};

// What every device has, and no kernel here exceeds: none has a second form for devices with more.
inline constexpr std::size_t kLeastSharedBytes = 99 * 1024;

// Of the device that the calling thread uses, which costs a few calls of the driver's and no wait. On a CPU: what the
// host executor pretends to be, which is the least of all devices unless a UseLimits lives (limits_host.h).
Limits limits();

}  // namespace device
