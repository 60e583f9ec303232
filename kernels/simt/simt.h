// simt.h - the programming interface of kernels: CUDA under nvcc, the host executor elsewhere. Only .cu files include
// it.
//
// A kernel is ordinary CUDA C++ and is launched as
//     simt::launch<kernel<T, Lanes>>({.grid = g, .block = b, .shared_bytes = n, .stream = s}, arguments...);
// SIMT_SHARED(float, sums, [32]) declares static shared memory, SIMT_DYN_SHARED(float, row) names the dynamic part.
// to_float(x) and round_to<T>(x) convert between storage types and float.
//
// The geometry is a template argument of every cooperative kernel. `simt::gpu_geometry` selects the GPU geometry (32
// lanes per row, on a GPU or on the host executor's fibers) or the CPU geometry (one lane per row, blocks of one
// thread, which the compiler vectorises over the pack).
#pragma once
#include <cstddef>

#include "kernels/device/types.h"

#if defined(TRAIN_GPT2_CUDA)
#include "kernels/simt/simt_cuda.h"
#else
#include "kernels/simt/simt_host.h"
#endif

namespace simt {
#if defined(TRAIN_GPT2_CUDA) || defined(TRAIN_GPT2_FIBERS)
inline constexpr bool gpu_geometry = true;
#else
inline constexpr bool gpu_geometry = false;
#endif
}  // namespace simt
