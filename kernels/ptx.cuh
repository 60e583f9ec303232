// ptx.cuh - tensor-core matrix multiply (mma), ldmatrix and asynchronous copies: PTX on a GPU (sm_80 or later),
// simt_tensor.h on the host
//
// A warp computes D (16 x 8, float) += A (16 x 16, bf16) B (16 x 8, bf16), each distributed over its lanes (PTX ISA,
// "Matrix Fragments for mma.m16n8k16 with floating point type"). With group = lane / 4 and t = lane % 4, low half of a
// register first:
//     A  reg[0..3]: rows group, group + 8, group, group + 8;  columns 2 t, 2 t + 1 in reg[0..1], 8 further in reg[2..3]
//     B  reg[0..1]: rows 2 t, 2 t + 1, 8 further in reg[1];  column group
//     D  d[0..3]:   rows group, group, group + 8, group + 8;  columns 2 t, 2 t + 1, 2 t, 2 t + 1
// Two adjacent D, rounded by bf16_pair, form the A of another product:
//     reg = (left 0 1, left 2 3, right 0 1, right 2 3)
//
// ldmatrix(reg, row) loads four 8 x 8 matrices, one per element of `reg`, from rows of 16 bytes in shared memory,
// aligned to 16 bytes: lane 8 j + i passes the address of row i of matrix j, and reg[j] of every lane receives
// elements 2 t and 2 t + 1 of row `group`, or with _trans of column `group`. If an operand's first element is at `tile`
// and its rows are `pitch` elements apart (a multiple of 8):
//     A stored [m][k]  ldmatrix(a.reg, tile + lane % 16 * pitch + lane / 16 * 8)
//     A stored [k][m]  ldmatrix_trans(a.reg, tile + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8)
// and for the two B fragments of columns n and n + 8:
//     B stored [n][k]  ldmatrix(pair.reg, tile + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8)
//     B stored [k][n]  ldmatrix_trans(pair.reg, tile + lane % 16 * pitch + lane / 16 * 8)
// A pitch of an odd multiple of 16 bytes avoids bank conflicts.
//
// All 32 lanes of a warp must call mma_m16n8k16 and ldmatrix together. Neither orders memory accesses: stores and
// ldmatrix must be separated by a barrier.
#pragma once
#include "kernels/simt/simt.h"
#if !defined(TRAIN_GPT2_CUDA)
#include "kernels/simt/simt_tensor.h"
#endif

namespace kernels {

struct FragmentA { unsigned reg[4]; };
struct FragmentB { unsigned reg[2]; };
struct FragmentBPair {
    unsigned reg[4];
    __device__ FragmentB operator[](int i) const { return {reg[2 * i], reg[2 * i + 1]}; }
};

#if defined(TRAIN_GPT2_CUDA)

__device__ __forceinline__ unsigned shared_address(const void* address) {
    return unsigned(__cvta_generic_to_shared(address));
}

__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const FragmentA& a, const FragmentB& b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.reg[0]), "r"(a.reg[1]), "r"(a.reg[2]), "r"(a.reg[3]), "r"(b.reg[0]), "r"(b.reg[1]));
}

// Rounds two values into one register of a fragment. NaN becomes 0x7fff.
__device__ __forceinline__ unsigned bf16_pair(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// 2^x, within 2 units in the last place; 0 for -infinity and for results below 2^-126.
__device__ __forceinline__ float fast_exp2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// The "memory" clobber keeps earlier stores before the instruction, which reads them.
__device__ __forceinline__ void ldmatrix(unsigned (&reg)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(reg[0]), "=r"(reg[1]), "=r"(reg[2]), "=r"(reg[3]) : "r"(shared_address(row)) : "memory");
}
__device__ __forceinline__ void ldmatrix_trans(unsigned (&reg)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(reg[0]), "=r"(reg[1]), "=r"(reg[2]), "=r"(reg[3]) : "r"(shared_address(row)) : "memory");
}

#else

#define PTX_CALLER const simt::CallSite& where = simt::CallSite::current()

inline void mma_m16n8k16(float (&d)[4], const FragmentA& a, const FragmentB& b,
                         PTX_CALLER) { simt::mma_m16n8k16(d, a.reg, b.reg, where); }

inline unsigned bf16_pair(float low, float high) {
    return bf16_from_float(low).bits | unsigned(bf16_from_float(high).bits) << 16;
}

inline float fast_exp2(float x) { return x < -126.0f ? 0.0f : std::exp2(x); }

inline void ldmatrix(unsigned (&reg)[4], const bf16* row, PTX_CALLER) { simt::ldmatrix<false>(reg, row, where); }
inline void ldmatrix_trans(unsigned (&reg)[4], const bf16* row, PTX_CALLER) { simt::ldmatrix<true>(reg, row, where); }

#undef PTX_CALLER

#endif

// Asynchronous copies of one thread (cp.async.cg), 16 bytes each, from global to shared memory, bypassing L1; one
// object per thread. Addresses are multiples of 16. A copy is visible to the thread that issued it when its next wait()
// returns, and to other threads after the next barrier. Before that the destination is undefined (on the host: NaN).
class AsyncCopies {
public:
    AsyncCopies() = default;
    AsyncCopies(const AsyncCopies&) = delete;

    // Writes zeros if not `present`; `global` is then not read.
    __device__ __forceinline__ void copy(bf16* shared, const bf16* global, bool present = true);

    __device__ __forceinline__ void wait();

#if !defined(TRAIN_GPT2_CUDA)
private:
    simt::AsyncCopyQueue queue_;
#endif
};

#if defined(TRAIN_GPT2_CUDA)

__device__ __forceinline__ void AsyncCopies::copy(bf16* shared, const bf16* global, bool present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(present ? 16 : 0) : "memory");
}
__device__ __forceinline__ void AsyncCopies::wait() { asm volatile("cp.async.wait_all;" : : : "memory"); }

#else

void AsyncCopies::copy(bf16* shared, const bf16* global, bool present) { queue_.issue(shared, global, present); }
void AsyncCopies::wait() { queue_.wait(); }

#endif

}  // namespace kernels
