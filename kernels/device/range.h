// range.h - named stretches of host time for NVIDIA's profilers (NVTX), seen by `nsys profile`: range_cuda.cpp; nothing
// in a build for CPUs: range_host.cpp
#pragma once

namespace device {

// From its construction to its destruction; ranges nest. What a kernel does is shown under the range that launched it.
class Range {
public:
    explicit Range(const char* name);
    ~Range();
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;
};

}  // namespace device
