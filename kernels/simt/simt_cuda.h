// simt_cuda.h - simt.h under nvcc: a thin layer over the CUDA runtime
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <string>

#include "kernels/base/error.h"
#include "kernels/device/types.h"
#include "kernels/simt/simt_kernel_name.h"
#include "kernels/simt/simt_launch_config.h"

#define SIMT_SHARED(T, name, extent) __shared__ __align__(16) T name extent
#define SIMT_DYN_SHARED(T, name)                                          \
    extern __shared__ __align__(128) unsigned char simt_dynamic_shared[]; \
    T* name = reinterpret_cast<T*>(simt_dynamic_shared)

namespace simt {

// Throws Error if a CUDA call for `kernel` failed. `kernel` is the compiler's name for it.
inline void check(cudaError_t status, const char* function, const char* kernel) {
    if (status != cudaSuccess)
        throw Error(std::string(function) + " of " + readable(kernel) + ": " + cudaGetErrorName(status) + ", " +
                    cudaGetErrorString(status), Blame::runtime);
}

// More than 48 KiB of shared memory per block need an opt-in. The difference is left for static shared variables.
inline constexpr std::size_t kSharedWithoutOptIn = 32 * 1024;

template <auto Kernel, class... Args>
void launch(const LaunchConfig& config, Args&&... args) {
    if (config.shared_bytes > kSharedWithoutOptIn)
        check(cudaFuncSetAttribute(Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(config.shared_bytes)),
              "cudaFuncSetAttribute", kernel_name<Kernel>());
    cudaLaunchConfig_t launch{};
    launch.gridDim = config.grid;
    launch.blockDim = config.block;
    launch.dynamicSmemBytes = config.shared_bytes;
    launch.stream = config.stream;
    check(cudaLaunchKernelEx(&launch, Kernel, static_cast<Args&&>(args)...), "cudaLaunchKernelExC",
          kernel_name<Kernel>());
}

// On a GPU a misaligned access faults in hardware.
__device__ __forceinline__ void check_aligned(const void*, int) {}

}  // namespace simt

namespace kernels {

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
template <class T> __device__ __forceinline__ T round_to(float x) {  // nearest, ties to even
    if constexpr (sizeof(T) == sizeof(bf16)) return T{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
    else return x;
}

}  // namespace kernels
