// range.h - NVTX ranges on the host for NVIDIA's profilers (`nsys profile`): range_cuda.cpp; no-ops in a CPU build:
// range_host.cpp
#pragma once

namespace device {

// Lasts from construction to destruction; ranges nest. A profiler shows a kernel under the range that launched it.
class Range {
public:
    explicit Range(const char* name);
    ~Range();
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;
};

}  // namespace device
