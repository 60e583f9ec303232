// simt_tensor.h - the host implementation of ptx.cuh: tensor-core products, matrix loads and asynchronous copies on the
// executor's fibers
//
// Products and loads are collectives of all 32 lanes. Behaviour that is undefined on a GPU throws Error here: a partial
// warp, a misaligned address, an address outside shared memory.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/simt/simt_warp.h"

namespace simt {

inline constexpr int kMatrixRowBytes = 16, kAsyncCopyBytes = 16;

// Waits for the whole warp; the last lane to arrive runs `combine`.
void wait_whole_warp(Wait instruction, const CallSite& where, void* operands, BlockScheduler::Combine combine);

// ---- d += a b, of shapes 16 x 8, 16 x 16, 16 x 8

// Each lane holds pairs of neighbouring elements; these functions return the position of a pair's first element, which
// is the low half of a register.
struct PairStart { int row, column; };
constexpr PairStart pair_of_a(int lane, int reg) { return {lane / 4 + 8 * (reg % 2), 2 * (lane % 4) + 8 * (reg / 2)}; }
// the pair's elements are neighbours in a column
constexpr PairStart pair_of_b(int lane, int reg) { return {2 * (lane % 4) + 8 * reg, lane / 4}; }
constexpr PairStart pair_of_d(int lane, int pair) { return {lane / 4 + 8 * pair, 2 * (lane % 4)}; }

inline float low_bf16(unsigned reg) { return std::bit_cast<float>(reg << 16); }
inline float high_bf16(unsigned reg) { return std::bit_cast<float>(reg & 0xffff0000u); }

struct ProductOperands { float* d; const unsigned *a, *b; };

inline void combine_product(void* const* operands, unsigned) {
    float a[16][16], b[16][8], d[16][8];
    for (int lane = 0; lane < kWarp; ++lane) {
        const auto& mine = *static_cast<const ProductOperands*>(operands[lane]);
        for (int reg = 0; reg < 4; ++reg) {
            const auto [row, column] = pair_of_a(lane, reg);
            a[row][column] = low_bf16(mine.a[reg]);
            a[row][column + 1] = high_bf16(mine.a[reg]);
        }
        for (int reg = 0; reg < 2; ++reg) {
            const auto [row, column] = pair_of_b(lane, reg);
            b[row][column] = low_bf16(mine.b[reg]);
            b[row + 1][column] = high_bf16(mine.b[reg]);
        }
        for (int pair = 0; pair < 2; ++pair) {
            const auto [row, column] = pair_of_d(lane, pair);
            d[row][column] = mine.d[2 * pair];
            d[row][column + 1] = mine.d[2 * pair + 1];
        }
    }
    for (int m = 0; m < 16; ++m)
        for (int k = 0; k < 16; ++k)  // the product of two bf16 is exact in float; only the additions round
            for (int n = 0; n < 8; ++n) d[m][n] += a[m][k] * b[k][n];
    for (int lane = 0; lane < kWarp; ++lane) {
        auto& mine = *static_cast<ProductOperands*>(operands[lane]);
        for (int pair = 0; pair < 2; ++pair) {
            const auto [row, column] = pair_of_d(lane, pair);
            mine.d[2 * pair] = d[row][column];
            mine.d[2 * pair + 1] = d[row][column + 1];
        }
    }
}

inline void mma_m16n8k16(float* d, const unsigned* a, const unsigned* b, const CallSite& where) {
    ProductOperands mine{d, a, b};
    wait_whole_warp(Wait::mma, where, &mine, combine_product);
}

// ---- 8 x 8 matrices of 16-bit elements from shared memory

struct MatrixOperands { unsigned* reg; std::uint16_t row[8]; };

template <bool Transposed>
void combine_matrices(void* const* operands, unsigned) {
    const auto element = [&](int matrix, int row, int column) -> unsigned {
        return static_cast<const MatrixOperands*>(operands[8 * matrix + row])->row[column];
    };
    for (int lane = 0; lane < kWarp; ++lane)
        for (int matrix = 0; matrix < 4; ++matrix) {
            const int major = lane / 4, minor = 2 * (lane % 4);
            const unsigned low = Transposed ? element(matrix, minor, major) : element(matrix, major, minor);
            const unsigned high = Transposed ? element(matrix, minor + 1, major) : element(matrix, major, minor + 1);
            static_cast<MatrixOperands*>(operands[lane])->reg[matrix] = low | high << 16;
        }
}

// Each lane reads its row when it arrives, not when the last lane does: a kernel without a barrier before the load then
// reads stale values.
template <bool Transposed>
void ldmatrix(unsigned* reg, const void* row, const CallSite& where) {
    MatrixOperands mine{reg, {}};
    check_aligned(row, kMatrixRowBytes);
    if (!running.shared.holds(row)) fault("ldmatrix reads an address outside shared memory");
    std::memcpy(mine.row, row, kMatrixRowBytes);
    wait_whole_warp(Wait::ldmatrix, where, &mine, combine_matrices<Transposed>);
}

// ---- copies from global to shared memory, which complete at the wait and not earlier

// The copies that one thread has issued. From issue to completion the destination holds NaN, which shows a missing wait
// or a copy into memory that other threads still read. A copy that is never waited for is never made.
class AsyncCopyQueue {
public:
    void issue(void* shared, const void* global, bool present);
    void wait();  // completes all copies

private:
    struct Copy { void* shared; const void *global, *caller; };  // global is null: writes zeros
    static void note_accesses(const Copy& copy);

    std::vector<Copy> copies_;  // in order of issue
};

}  // namespace simt
