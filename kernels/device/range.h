// range.h - named stretches of host time for NVIDIA's profilers (NVTX), seen by `nsys profile`; nothing in a build for
// CPUs
#pragma once
#if defined(TRAIN_GPT2_CUDA)
#include <nvtx3/nvToolsExt.h>
#endif

namespace device {

// From its construction to its destruction; ranges nest. What a kernel does is shown under the range that launched it.
class Range {
public:
#if defined(TRAIN_GPT2_CUDA)
    explicit Range(const char* name) { nvtxRangePushA(name); }
    ~Range() { nvtxRangePop(); }
#else
    explicit Range(const char*) {}
    ~Range() {}  // not trivial, so that a range nobody reads is no unused variable
#endif
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;
};

}  // namespace device
