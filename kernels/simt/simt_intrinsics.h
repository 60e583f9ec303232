// simt_intrinsics.h - CUDA's built-in functions for a single thread: atomics, fences, mathematics, bits, cache hints;
// and to_float / round_to
#pragma once
#include <atomic>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "kernels/device/types.h"
#include "kernels/simt/simt_language.h"

namespace simt {

template <class T>
concept AtomicInteger = std::same_as<T, int> || std::same_as<T, unsigned> || std::same_as<T, unsigned long long>;
template <class T>
concept Atomic = AtomicInteger<T> || std::same_as<T, float> || std::same_as<T, double>;

// Stores choose(old, value) if it differs from `old`; returns `old`.
template <class T, class Choose>
T atomic_choose(T* address, T value, Choose choose) {
    std::atomic_ref<T> target(*address);
    T old = target.load(std::memory_order_relaxed);
    while (choose(old, value) != old &&
           !target.compare_exchange_weak(old, choose(old, value), std::memory_order_relaxed)) {}
    return old;
}

}  // namespace simt

// All atomics return the old value, are relaxed, and have device scope.
template <simt::Atomic T> T atomicAdd(T* address, std::type_identity_t<T> value) {
    return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);
}
template <simt::AtomicInteger T> T atomicMax(T* address, std::type_identity_t<T> value) {
    return simt::atomic_choose(address, value, [](T a, T b) { return a < b ? b : a; });
}
template <simt::AtomicInteger T> T atomicMin(T* address, std::type_identity_t<T> value) {
    return simt::atomic_choose(address, value, [](T a, T b) { return b < a ? b : a; });
}
template <class T> requires simt::AtomicInteger<T> || std::same_as<T, float>
T atomicExch(T* address, std::type_identity_t<T> value) {
    return std::atomic_ref<T>(*address).exchange(value, std::memory_order_relaxed);
}
template <simt::AtomicInteger T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
    std::atomic_ref<T>(*address).compare_exchange_strong(expected, value, std::memory_order_relaxed);
    return expected;
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
// a block runs on one core
inline void __threadfence_block() { std::atomic_signal_fence(std::memory_order_seq_cst); }

__forceinline__ float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
__forceinline__ double rsqrt(double x) { return 1.0 / std::sqrt(x); }
__forceinline__ float __expf(float x) { return std::exp(x); }
__forceinline__ float __logf(float x) { return std::log(x); }
__forceinline__ float __fdividef(float x, float y) { return x / y; }

__forceinline__ int __popc(unsigned x) { return std::popcount(x); }
__forceinline__ int __popcll(unsigned long long x) { return std::popcount(x); }
__forceinline__ int __clz(int x) { return std::countl_zero(unsigned(x)); }
__forceinline__ int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(unsigned(x)) + 1; }
__forceinline__ float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
__forceinline__ unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
__forceinline__ float __int_as_float(int x) { return std::bit_cast<float>(x); }
__forceinline__ int __float_as_int(float x) { return std::bit_cast<int>(x); }

// Cache hints: plain accesses on the host.
template <class T> __forceinline__ T __ldg(const T* address) { return *address; }
template <class T> __forceinline__ T __ldcs(const T* address) { return *address; }
template <class T> __forceinline__ void __stcs(T* address, std::type_identity_t<T> value) { *address = value; }

namespace kernels {

__forceinline__ float to_float(float x) { return x; }
__forceinline__ float to_float(bf16 x) { return bf16_to_float(x); }
template <class T> __forceinline__ T round_to(float x) {  // nearest, ties to even; NaN stays NaN
    if constexpr (std::is_same_v<T, bf16>) return bf16_from_float(x);
    else return x;
}

}  // namespace kernels
