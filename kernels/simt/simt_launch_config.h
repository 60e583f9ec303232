// simt_launch_config.h - the launch configuration of a kernel, on both devices; include it after dim3 is declared
#pragma once
#include <cstddef>

#include "kernels/device/types.h"

namespace simt {

inline constexpr int kWarp = 32;  // lanes

struct LaunchConfig {
    dim3 grid, block;
    std::size_t shared_bytes = 0;
    device::StreamRef stream = nullptr;
};

}  // namespace simt
