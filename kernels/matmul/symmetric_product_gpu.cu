// symmetric_product_gpu.cu - symmetric_product.h
//
// Tiles     A block computes 128 x 128 elements of `out`, each of its four warps 64 x 64 of them. It reads 128 rows of
//           x twice, once for the rows and once for the columns of the tile; on the diagonal both are the same.
// Pipeline  Two buffers of 64 bytes of k. A step starts the copies of the next one, multiplies the current one, waits
//           for the copies, and ends with its only barrier.
// Layout    Rows in shared memory are an odd multiple of 16 bytes apart, so that copies and ldmatrix have no bank
//           conflicts.
// Result    goes through shared memory, so that both the tile and its transpose are stored in packs of 16 bytes. On the
//           diagonal the elements below it are written to both places.
// The sizes are derived, not measured on a GPU yet.
#include <algorithm>
#include <type_traits>

#include "kernels/matmul/check.h"
#include "kernels/matmul/symmetric_product.h"
#include "kernels/pack.cuh"
#include "kernels/ptx.cuh"

namespace kernels {
namespace {

constexpr int kSymmetricSide = 128, kSymmetricThreads = 128, kWarpSide = 64;

// A part of x in shared memory: kSymmetricSide of its rows (if transposed: columns) by `inner` elements of k.
template <class T, bool Transposed>
struct SymmetricBuffer {
    static constexpr int pack = kGpuPackBytes / sizeof(T), inner = 64 / sizeof(T);
    static constexpr int rows = Transposed ? inner : kSymmetricSide, columns = Transposed ? kSymmetricSide : inner;
    static constexpr int pitch = columns + pack, size = rows * pitch;
    static constexpr int out_pitch = kSymmetricSide + pack;
    static constexpr std::size_t shared_bytes = sizeof(T) * std::max(4 * size, kSymmetricSide * out_pitch);

    // Of the matrix x, with rows of m elements if transposed, otherwise of k. Elements beyond it become zero.
    __device__ static void copy(AsyncCopies& copies, T* to, const T* x, int m, int k, int first, int first_k) {
        constexpr int kPacks = columns / pack;
        const int height = Transposed ? k : m, width = Transposed ? m : k;
        UNROLLED for (int i = 0; i < rows * kPacks / kSymmetricThreads; ++i) {
            const int at = int(threadIdx.x) + i * kSymmetricThreads, row = at / kPacks, column = at % kPacks * pack;
            const int from_row = row + (Transposed ? first_k : first),
                      from_column = column + (Transposed ? first : first_k);
            const bool present = from_row < height && from_column < width;
            const T* const from = present ? x + std::ptrdiff_t(from_row) * width + from_column : x;
            copies.copy(reinterpret_cast<bf16*>(to + row * pitch + column),
                                reinterpret_cast<const bf16*>(from), present);
        }
    }
    // Where the part of a warp begins, from its first row (if transposed: column).
    __device__ static const T* part(const T* buffer, int first) { return buffer + first * (Transposed ? 1 : pitch); }
};

// A warp's part of the tile, distributed over its lanes like the D of mma_m16n8k16: [16 rows][8 columns].
using SymmetricSums = float[kWarpSide / 16][kWarpSide / 8][4];

template <bool Transposed>
__device__ void add_products(SymmetricSums& sums, const bf16* left, const bf16* right, int lane) {
    using Buffer = SymmetricBuffer<bf16, Transposed>;
    constexpr int kPitch = Buffer::pitch;
    UNROLLED for (int k = 0; k < Buffer::inner; k += 16) {
        FragmentA rows[kWarpSide / 16];
        UNROLLED for (int g = 0; g < kWarpSide / 16; ++g) {
            if constexpr (Transposed)
                ldmatrix_trans(rows[g].reg,
                               left + (k + lane % 8 + lane / 16 * 8) * kPitch + g * 16 + lane / 8 % 2 * 8);
            else ldmatrix(rows[g].reg, left + (g * 16 + lane % 16) * kPitch + k + lane / 16 * 8);
        }
        UNROLLED for (int c = 0; c < kWarpSide / 16; ++c) {
            FragmentBPair columns;
            if constexpr (Transposed)
                ldmatrix_trans(columns.reg, right + (k + lane % 16) * kPitch + c * 16 + lane / 16 * 8);
            else
                ldmatrix(columns.reg, right + (c * 16 + lane % 8 + lane / 16 * 8) * kPitch + k + lane / 8 % 2 * 8);
            UNROLLED for (int g = 0; g < kWarpSide / 16; ++g)
                UNROLLED for (int i = 0; i < 2; ++i) mma_m16n8k16(sums[g][2 * c + i], rows[g], columns[i]);
        }
    }
}

template <bool Transposed>
__device__ void add_products(SymmetricSums& sums, const float* left, const float* right, int lane) {
    using Buffer = SymmetricBuffer<float, Transposed>;
    using Two = Pack<float, 8>;  // neighbours along k; four spill
    const auto two = [](const float* part, int row, int k) {
        if constexpr (Transposed) return Two{{part[k * Buffer::pitch + row], part[(k + 1) * Buffer::pitch + row]}};
        else return Two(load<8>(part + row * Buffer::pitch + k));
    };
    for (int k = 0; k < Buffer::inner; k += 2) {  // if unrolled, ptxas spills
        Two rows[kWarpSide / 8];
        UNROLLED for (int g = 0; g < kWarpSide / 8; ++g) rows[g] = two(left, g * 8 + lane / 4, k);
        UNROLLED for (int c = 0; c < kWarpSide / 4; ++c) {
            const Two column = two(right, c / 2 * 8 + lane % 4 * 2 + c % 2, k);
            UNROLLED for (int g = 0; g < kWarpSide / 8; ++g)
                UNROLLED for (int i = 0; i < 2; ++i) sums[g / 2][c / 2][g % 2 * 2 + c % 2] += rows[g][i] * column[i];
        }
    }
}

template <class T, bool Transposed>
__global__ void __launch_bounds__(kSymmetricThreads) symmetric_product_kernel(SymmetricProduct<T> op, int tiles) {
    using Buffer = SymmetricBuffer<T, Transposed>;
    SIMT_DYN_SHARED(T, shared);
    const int lane = threadIdx.x % simt::kWarp, warp = threadIdx.x / simt::kWarp, m = op.m;
    const int own_row = warp / 2 * kWarpSide, own_column = warp % 2 * kWarpSide;
    // The lower triangle row by row: row r has r + 1 tiles.
    int tile_row = 0, tile_column = int(blockIdx.x) % tiles;
    while (tile_column > tile_row) tile_column -= ++tile_row;
    const bool diagonal = tile_row == tile_column;
    const int first_row = tile_row * kSymmetricSide, first_column = tile_column * kSymmetricSide;
    const std::size_t item = blockIdx.x / unsigned(tiles), matrix = item * std::size_t(m) * std::size_t(m);
    const T* const x = op.x.data() + item * std::size_t(m) * std::size_t(op.k);

    AsyncCopies copies;
    const auto buffer = [&](int k) { return shared + k / Buffer::inner % 2 * (2 * Buffer::size); };
    const auto fetch = [&](int k) {
        Buffer::copy(copies, buffer(k), x, m, op.k, first_row, k);
        if (!diagonal) Buffer::copy(copies, buffer(k) + Buffer::size, x, m, op.k, first_column, k);
    };
    SymmetricSums sums = {};
    fetch(0);
    copies.wait();
    __syncthreads();
    for (int k = 0; k < op.k; k += Buffer::inner) {
        if (k + Buffer::inner < op.k) fetch(k + Buffer::inner);
        const T* const right = diagonal ? buffer(k) : buffer(k) + Buffer::size;
        add_products<Transposed>(sums, Buffer::part(buffer(k), own_row), Buffer::part(right, own_column), lane);
        copies.wait();
        __syncthreads();
    }

    const auto for_each = [&](auto&& visit) {  // with the position in the tile
        UNROLLED for (int g = 0; g < kWarpSide / 16; ++g)
            UNROLLED for (int c = 0; c < kWarpSide / 8; ++c)
                UNROLLED for (int i = 0; i < 4; ++i)
                    visit(own_row + g * 16 + i / 2 * 8 + lane / 4, own_column + c * 8 + lane % 4 * 2 + i % 2,
                          sums[g][c][i]);
    };
    const auto store_tile = [&](int at_row, int at_column) {
        constexpr int kPacks = kSymmetricSide / Buffer::pack;
        for (int i = threadIdx.x; i < kSymmetricSide * kPacks; i += kSymmetricThreads) {
            const int row = i / kPacks, column = i % kPacks * Buffer::pack;
            if (at_row + row < m && at_column + column < m)
                store(op.out.data() + matrix + std::size_t(at_row + row) * std::size_t(m) + (at_column + column),
                      Pack<T, kGpuPackBytes>(load<kGpuPackBytes>(shared + row * Buffer::out_pitch + column)));
        }
    };
    for_each([&](int row, int column, float& sum) {
        if (diagonal && column > row) return;
        sum *= op.alpha;
        if (op.beta != 0 && first_row + row < m && first_column + column < m)
            sum += op.beta * to_float(op.addend.data()[matrix + std::size_t(first_row + row) * std::size_t(m) +
                                                       (first_column + column)]);
        shared[row * Buffer::out_pitch + column] = round_to<T>(sum);
        if (diagonal) shared[column * Buffer::out_pitch + row] = round_to<T>(sum);
    });
    __syncthreads();
    store_tile(first_row, first_column);
    if (diagonal) return;
    __syncthreads();
    for_each([&](int row, int column, float& sum) {
        shared[column * Buffer::out_pitch + row] = round_to<T>(sum);
    });
    __syncthreads();
    store_tile(first_column, first_row);
}

}  // namespace

template <class T>
void symmetric_product(const SymmetricProduct<T>& op, StreamRef stream) {
    matmul_check::check(op);
    const int rows = ceil_div(op.m, kSymmetricSide), tiles = rows * (rows + 1) / 2;
    const auto launch = [&]<bool Transposed>(std::bool_constant<Transposed>) {
        simt::launch<symmetric_product_kernel<T, Transposed>>(
            {.grid = unsigned(tiles) * unsigned(op.batch), .block = kSymmetricThreads,
             .shared_bytes = SymmetricBuffer<T, Transposed>::shared_bytes, .stream = stream}, op, tiles);
    };
    op.transposed ? launch(std::true_type()) : launch(std::false_type());
}

template void symmetric_product(const SymmetricProduct<float>&, StreamRef);
template void symmetric_product(const SymmetricProduct<bf16>&, StreamRef);

}  // namespace kernels
