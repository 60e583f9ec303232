// simt_language.h - the CUDA C++ language elements that a host compiler lacks: qualifiers, vector types, threadIdx and
// the other built-in variables
//
// __noinline__ must stay undefined: libraries write __attribute__((__noinline__)). So must __shared__: kernels use
// SIMT_SHARED, which is defined for both devices.
#pragma once

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) alignas(bytes)

struct uint3 { unsigned x, y, z; };
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(16) int4 { int x, y, z, w; };

// Built-in variables of the kernel thread that this OS thread executes. Constant initialisation keeps each access a
// single instruction.
inline thread_local constinit uint3 threadIdx{0, 0, 0};
inline thread_local constinit uint3 blockIdx{0, 0, 0};
inline thread_local constinit dim3 blockDim{};
inline thread_local constinit dim3 gridDim{};
