// checked_cuda.h - CHECKED() for the CUDA runtime
#pragma once
#include <cuda_runtime_api.h>

#include "kernels/device/checked.h"

inline std::string fault_of(cudaError_t status) {
    if (status == cudaSuccess) return {};
    return std::string(cudaGetErrorName(status)) + ", " + cudaGetErrorString(status);
}
