// limits_host.h - the device limits that the host executor emulates
#pragma once
#include "kernels/device/limits.h"

namespace device {

// One multiprocessor, so that small tensors already give a block several rows, and the shared memory that every GPU
// has: a kernel that requests more fails each test that launches it.
inline constexpr Limits kExecutorLimits{.multiprocessors = 1, .shared_bytes = kMinSharedBytes};

// During its lifetime, launches by this OS thread are checked against `limits`.
class UseLimits {
public:
    explicit UseLimits(const Limits& limits);
    ~UseLimits();
    UseLimits(const UseLimits&) = delete;

private:
    const Limits before_;
};

}  // namespace device
