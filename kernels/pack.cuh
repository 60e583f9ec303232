// pack.cuh - the unit in which kernels touch memory: Bytes of neighbouring elements, aligned, moved by one instruction
// on a GPU
#pragma once
#include "kernels/simt/simt.h"

// Arrays lie in registers only where every loop over them is unrolled; left to itself nvcc put 528 bytes of flash
// attention's on the stack once.
#if defined(TRAIN_GPT2_CUDA)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED
#endif

namespace kernels {

template <class T, int Bytes>
struct alignas(Bytes) Pack {
    static constexpr int size = Bytes / sizeof(T);
    T element[size];
    __device__ T& operator[](int i) { return element[i]; }
    __device__ const T& operator[](int i) const { return element[i]; }
};

// What a GPU moves in one instruction; what fills a cache line (and one 512-bit or two 256-bit registers of floats) on
// a CPU.
inline constexpr int kGpuPackBytes = 16;
inline constexpr int kCpuPackBytes = 64;

// `address` must be aligned to Bytes; the host executor checks it, a GPU faults. On a GPU the pack arrives in
// registers; on a CPU it is the memory itself: by value g++ copies it to the stack first (LayerNorm backward 18-26 %
// slower). Bind it to `const auto&` where nothing is stored to in between.
#if defined(TRAIN_GPT2_CUDA)
template <int Bytes, class T>
__device__ Pack<T, Bytes> load(const T* address) {
    return *reinterpret_cast<const Pack<T, Bytes>*>(address);
}
// Takes no instruction; the compiler believes that the word has changed, and keeps nothing that it made of it.
__device__ __forceinline__ void renew(unsigned& word) { asm volatile("" : "+r"(word)); }
#else
inline void renew(unsigned&) {}
template <int Bytes, class T>
const Pack<T, Bytes>& load(const T* address) {
    simt::check_aligned(address, Bytes);
    return *reinterpret_cast<const Pack<T, Bytes>*>(address);
}
#endif

template <class T, int Bytes>
__device__ void store(T* address, const Pack<T, Bytes>& pack) {
    simt::check_aligned(address, Bytes);
    *reinterpret_cast<Pack<T, Bytes>*>(address) = pack;
}

}  // namespace kernels
