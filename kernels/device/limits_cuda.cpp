// limits_cuda.cpp - limits.h on a GPU
#include "kernels/device/checked_cuda.h"
#include "kernels/device/limits.h"

namespace device {
namespace {

int attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    CHECKED(cudaDeviceGetAttribute(&value, which, device));
    return value;
}

}  // namespace

Limits limits() {
    int device = 0;
    CHECKED(cudaGetDevice(&device));
    return {.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device),
            .shared_bytes = std::size_t(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device))};
}

}  // namespace device
