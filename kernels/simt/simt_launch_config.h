// simt_launch_config.h - how a kernel is launched, on either device; included where dim3 is known
#pragma once
#include <cstddef>

#include "kernels/device/types.h"

namespace simt {

struct LaunchConfig {
    dim3 grid, block;
    std::size_t shared_bytes = 0;
    dim3 cluster = 1;
    device::StreamRef stream = nullptr;
};

}  // namespace simt
