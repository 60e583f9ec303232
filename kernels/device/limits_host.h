// limits_host.h - which device the host executor pretends to be
#pragma once
#include "kernels/device/limits.h"

namespace device {

// One multiprocessor, so that small tensors are enough to give a block several rows, and no more shared memory than
// every GPU has: a kernel that asks for more fails each test that launches it.
inline constexpr Limits kExecutorLimits{.multiprocessors = 1, .shared_bytes = kLeastSharedBytes};

// While it lives, launches by this OS thread meet `limits`.
class UseLimits {
public:
    explicit UseLimits(const Limits& limits);
    ~UseLimits();
    UseLimits(const UseLimits&) = delete;

private:
    const Limits before_;
};

}  // namespace device
