// limits.h - the device properties that launchers need: limits_cuda.cpp | limits_host.cpp
#pragma once
#include <cstddef>

namespace device {

struct Limits {
    int multiprocessors;
    // Shared memory per block, static plus dynamic, with opt-in: 163 KiB on compute capability 8.0, 227 on 9.0 and
    // 10.0, 99 on 8.6, 8.9 and 12.0.
    std::size_t shared_bytes;
};

// The minimum over all supported devices. No kernel uses more, and none has a variant for devices with more.
inline constexpr std::size_t kMinSharedBytes = 99 * 1024;

// Limits of the calling thread's current device; costs a few driver calls and no synchronization. On a CPU: the limits
// that the host executor emulates, which are the minimum of all devices unless a UseLimits is alive (limits_host.h).
Limits limits();

}  // namespace device
