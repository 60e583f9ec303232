// fp8.cu - scales in two passes, elementwise rounding, and transposition by tiles in shared memory
#include "kernels/fp8.h"

#include "kernels/base/error.h"
#include "kernels/fp8.cuh"
#include "kernels/reduce.cuh"
#include "kernels/widen.cuh"

namespace kernels {
namespace {

constexpr int kFp8Pack = 16;  // elements that a thread moves at once: 16 bytes of fp8
constexpr int kFp8Threads = simt::gpu_geometry ? 256 : 1;
constexpr std::size_t kLargestTile = 65536;  // elements of a block of the first pass: not measured yet

// Largest magnitude of elements first, first + 1, ..., end - 1, for all threads of the block. Ignores NaN: NaN weights
// are rounded to NaN with any scale.
__device__ float largest_magnitude(std::span<const bf16> x, std::size_t first, std::size_t end) {
    float largest[kFp8Pack] = {};
    for (std::size_t i = first + threadIdx.x * kFp8Pack; i < end; i += kFp8Threads * kFp8Pack) {
        const auto& pack = load<kFp8Pack * sizeof(bf16)>(&x[i]);
        for (int k = 0; k < kFp8Pack; ++k)
            largest[k] = fabsf(to_float(pack[k])) > largest[k] ? fabsf(to_float(pack[k])) : largest[k];
    }
    for (const float each : largest) largest[0] = fmaxf(largest[0], each);
    return block_max<kFp8Threads>(largest[0]);
}

__global__ void __launch_bounds__(kFp8Threads) largest_weights_kernel(Fp8ScalesOp op) {
    const std::size_t first = blockIdx.x * kLargestTile;
    const float largest = largest_magnitude(op.weight, first, std::min(first + kLargestTile, op.weight.size()));
    if (threadIdx.x == 0) op.scratch[blockIdx.x] = largest;
}

// The largest power of two with power * bound <= 448.
__device__ float scale_of(float bound) {
    const float ratio = fminf(fmaxf(e4m3::kLargest / bound, 0x1p-40f), 0x1p40f);
    return __uint_as_float(__float_as_uint(ratio) & 0xff800000u);
}
__global__ void __launch_bounds__(kFp8Threads) fp8_scales_kernel(Fp8ScalesOp op, int blocks) {
    float weight = 0;
    for (int i = threadIdx.x; i < blocks; i += kFp8Threads) weight = fmaxf(weight, op.scratch[i]);
    weight = block_max<kFp8Threads>(weight);
    const float gamma = largest_magnitude(op.gamma, 0, op.gamma.size()),
                beta = largest_magnitude(op.beta, 0, op.beta.size());
    if (threadIdx.x > 0) return;
    op.scales[kScaleX] = scale_of(gamma * sqrtf(float(op.gamma.size())) + beta);
    op.scales[kScaleW] = scale_of(weight);
    op.scales[kInverseX] = 1.0f / op.scales[kScaleX];
    op.scales[kInverseW] = 1.0f / op.scales[kScaleW];
}

__global__ void fp8_round_kernel(Fp8Round op, int tile_packs) {
    const float scale = op.scale[0];
    for_packs_of_tile<e4m3, kFp8Pack>(op.out.size(), tile_packs, [&](std::size_t i) {
        float x[kFp8Pack];
        widen(load<kFp8Pack * sizeof(bf16)>(&op.in[i]), x);
        for (float& each : x) each *= scale;
        store(&op.out[i], fp8_pack<e4m3>(x));
    });
}

// A tile of kFp8Tile rows and columns, in shared memory as 32-bit words of four columns: rows of kFp8TileWords words,
// and four more words after 16 rows, so that the lanes of a warp access different banks both ways.
constexpr int kFp8Tile = 128, kFp8TileWords = kFp8Tile / 4;
__device__ constexpr int word_of(int row) { return row * kFp8TileWords + row / 16 * 4; }

// The four columns of four rows of four bytes.
__device__ __forceinline__ void transpose_bytes(unsigned (&x)[4]) {
    const unsigned low01 = __byte_perm(x[0], x[1], 0x5140), high01 = __byte_perm(x[0], x[1], 0x7362),
                   low23 = __byte_perm(x[2], x[3], 0x5140), high23 = __byte_perm(x[2], x[3], 0x7362);
    x[0] = __byte_perm(low01, low23, 0x5410);
    x[1] = __byte_perm(low01, low23, 0x7632);
    x[2] = __byte_perm(high01, high23, 0x5410);
    x[3] = __byte_perm(high01, high23, 0x7632);
}

template <class T>
__global__ void __launch_bounds__(kFp8Threads) fp8_transpose_kernel(Fp8Transpose<T> op) {
    using Words = Pack<unsigned, kFp8Pack>;
    constexpr int kPacks = kFp8Tile / kFp8Pack;
    SIMT_SHARED(unsigned, tile, [word_of(kFp8Tile)]);
    const int first_row = blockIdx.x * kFp8Tile, first_column = blockIdx.y * kFp8Tile;
    for (int i = threadIdx.x; i < kFp8Tile * kPacks; i += kFp8Threads) {
        const int row = i / kPacks, column = i % kPacks * kFp8Pack;
        Words words{};
        if (first_row + row < op.rows && first_column + column < op.columns)
            words = std::bit_cast<Words>(load<kFp8Pack>(
                &op.in[std::size_t(first_row + row) * op.columns + first_column + column]));
        store(&tile[word_of(row) + column / 4], words);
    }
    __syncthreads();
    // A thread has four columns of 16 rows. Neighbouring threads write neighbouring rows.
    const int padded = fp8_padded_rows(op.rows);
    for (int i = threadIdx.x; i < kPacks * kFp8TileWords; i += kFp8Threads) {
        const int row = i % kPacks * kFp8Pack, word = i / kPacks, column = first_column + 4 * word;
        if (first_row + row >= padded || column >= op.columns) continue;
        Words out[4];
        for (int j = 0; j < 4; ++j) {
            unsigned bytes[4];
            for (int k = 0; k < 4; ++k) bytes[k] = tile[word_of(row + 4 * j + k) + word];
            transpose_bytes(bytes);
            for (int k = 0; k < 4; ++k) out[k][j] = bytes[k];
        }
        T* const to = &op.out[std::size_t(column) * padded + first_row + row];
        for (int k = 0; k < 4; ++k) store(to + k * padded, std::bit_cast<Pack<T, kFp8Pack>>(out[k]));
    }
}

}  // namespace

std::size_t fp8_scales_scratch(std::size_t weights) { return ceil_div(weights, kLargestTile); }

void fp8_scales(const Fp8ScalesOp& op, StreamRef stream) {
    const std::size_t blocks = fp8_scales_scratch(op.weight.size());
    require_size("scales", op.scales, kFp8Scales);
    require_size("scratch of fp8_scales", op.scratch, blocks, "fp8_scales_scratch(weights)");
    require_multiple("weights of fp8_scales", op.weight.size(), kFp8Pack);
    require_multiple("channels of fp8_scales", op.gamma.size(), kFp8Pack);
    require(op.beta.size() == op.gamma.size(), "the size of beta", op.beta.size(), "the size of gamma");
    simt::launch<largest_weights_kernel>({.grid = unsigned(blocks), .block = kFp8Threads, .stream = stream}, op);
    simt::launch<fp8_scales_kernel>({.grid = 1, .block = kFp8Threads, .stream = stream}, op, int(blocks));
}

void fp8_round(const Fp8Round& op, StreamRef stream) {
    require(op.out.size() == op.in.size() && op.in.size() % kFp8Pack == 0, "the size of fp8_round's output",
            op.out.size(), "the size of its input, a multiple of 16");
    require_size("scale", op.scale, 1);
    launch_tiles<fp8_round_kernel, kFp8Pack>(op, op.out.size(), stream);
}

template <class T>
void fp8_transpose(const Fp8Transpose<T>& op, StreamRef stream) {
    require(op.rows > 0, "rows of fp8_transpose", op.rows, "at least 1");
    require_multiple("columns of fp8_transpose", op.columns, kFp8Pack);
    require_size("in", op.in, std::size_t(op.rows) * op.columns, "rows * columns");
    require_size("out", op.out, std::size_t(fp8_padded_rows(op.rows)) * op.columns, "padded rows * columns");
    simt::launch<fp8_transpose_kernel<T>>({.grid = {unsigned(ceil_div(op.rows, kFp8Tile)),
                                                    unsigned(ceil_div(op.columns, kFp8Tile))},
                                           .block = kFp8Threads, .stream = stream}, op);
}

template void fp8_transpose(const Fp8Transpose<e4m3>&, StreamRef);
template void fp8_transpose(const Fp8Transpose<e5m2>&, StreamRef);

}  // namespace kernels
