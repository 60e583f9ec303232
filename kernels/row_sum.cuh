// row_sum.cuh - a block sums rows of a matrix, channel by channel; shared by the gradients of biases, of LayerNorm's
// parameters and of the embeddings
//
//   out[c] (+)= sum over i < count of in[row_of(i), c]        for the channels of one slice
//
// Sums in float. Their order depends only on `count` and the geometry, never on the scheduling of blocks or threads.
#pragma once
#include "kernels/pack.cuh"
#include "kernels/reduce.cuh"

namespace kernels {

// A team is `Lanes` threads on neighbouring packs; the `Teams` teams of a block process the rows round-robin. A single
// thread processes its whole slice.
template <int Lanes_, int Teams_, int PackBytes_>
struct RowSumGeometry {
    static constexpr int lanes = Lanes_, teams = Teams_, pack_bytes = PackBytes_, threads = Lanes_ * Teams_;
};

// A CPU's pack if channels is a multiple of it: the same number of elements for every type, because g++ vectorises a
// loop of 32 but unrolls one of 16 first and then adds single floats (LayerNorm forward, 1024 x 768 fp32, one core:
// 0.18 ms with 128 bytes, 0.34 with 64).
inline constexpr int kCpuPackElements = 32;
template <class T> inline constexpr int kCpuRowPackBytes = kCpuPackElements * sizeof(T);

// Packs first .. end - 1 of every row; with more than one lane, at most `lanes` packs.
struct Slice {
    int first, end;
};

template <int PackBytes, class T>
__device__ void add_pack(Partial<PackBytes / sizeof(T)>& sum, const T* address) {
    const Pack<T, PackBytes> pack = load<PackBytes>(address);
    for (int k = 0; k < Pack<T, PackBytes>::size; ++k) sum[k] += to_float(pack[k]);
}

template <int Size>
__device__ void write_sum(float* address, const Partial<Size>& sum, bool accumulate) {
    constexpr int kBytes = Size * sizeof(float);
    Pack<float, kBytes> out{};
    if (accumulate) out = load<kBytes>(address);
    for (int k = 0; k < Size; ++k) out[k] += sum.element[k];
    store(address, out);
}

// Sums `AtOnce` consecutive rows of the list, so that `out` is accessed once for all of them. It reads the rows in
// place: g++ copies a loaded pack to the stack first, which here costs more than the addition (bias gradient, 1024 x
// 768 fp32, one core: 0.044 ms with packs, 0.027 without).
template <int AtOnce, int Size, class T, class RowOf>
__device__ void thread_add_rows(float* out, const T* in, int channels, Slice slice, int first, RowOf row_of,
                                bool accumulate) {
    const T* row[AtOnce];
    for (int r = 0; r < AtOnce; ++r) row[r] = in + std::size_t(row_of(first + r)) * channels;
    for (int i = slice.first * Size; i < slice.end * Size; i += Size) {
        Partial<Size> sum;
        for (int k = 0; k < Size; ++k) {
            sum[k] = to_float(row[0][i + k]);
            for (int r = 1; r < AtOnce; ++r) sum[k] += to_float(row[r][i + k]);
        }
        if (accumulate)
            for (int k = 0; k < Size; ++k) out[i + k] += sum[k];
        else
            for (int k = 0; k < Size; ++k) out[i + k] = sum[k];
    }
}

// One thread reads each row in ascending order, as the prefetcher expects; `out` stays in L1. Embedding gradient of
// 1024 x 768 on one core with 1, 2, 4 and 8 rows at once: fp32 0.12, 0.083, 0.085, 0.11 ms; bf16 0.066, 0.057, 0.052,
// 0.071.
template <int Size, class T, class RowOf>
__device__ void thread_row_sum(float* out, const T* in, int channels, Slice slice, int count, RowOf row_of,
                               bool accumulate) {
    constexpr int kAtOnce = 4;
    int i = 0;
    for (; i + kAtOnce <= count; i += kAtOnce)
        thread_add_rows<kAtOnce, Size>(out, in, channels, slice, i, row_of, accumulate || i > 0);
    for (; i < count; ++i) thread_add_rows<1, Size>(out, in, channels, slice, i, row_of, accumulate || i > 0);
    if (count == 0 && !accumulate)
        for (int k = slice.first * Size; k < slice.end * Size; ++k) out[k] = 0.0f;
}

// All threads of the block must call it, at most once per kernel. If count is 0, `out` becomes 0 unless accumulating.
template <class Geometry, class T, class RowOf>
__device__ void block_row_sum(float* out, const T* in, int channels, Slice slice, int count, RowOf row_of,
                              bool accumulate) {
    if constexpr (Geometry::threads == 1)
        thread_row_sum<Geometry::pack_bytes / sizeof(T)>(out, in, channels, slice, count, row_of, accumulate);
    else {
        constexpr int kSize = Geometry::pack_bytes / sizeof(T);
        const int lane = threadIdx.x % Geometry::lanes, team = threadIdx.x / Geometry::lanes;
        const int pack = slice.first + lane;
        const bool in_slice = pack < slice.end;
        Partial<kSize> sum;
        if (in_slice)
            for (int i = team; i < count; i += Geometry::teams)
                add_pack<Geometry::pack_bytes>(sum, in + std::size_t(row_of(i)) * channels + pack * kSize);

        if (count > 1) {  // otherwise team 0 holds the sum; uniform over the block, so the barrier is not divergent
            SIMT_SHARED(float, team_sums, [Geometry::teams][Geometry::lanes * kSize]);
            if (team > 0)
                for (int k = 0; k < kSize; ++k) team_sums[team][lane * kSize + k] = sum[k];
            __syncthreads();
            const int busy_teams = count < Geometry::teams ? count : Geometry::teams;
            if (team == 0)
                for (int other = 1; other < busy_teams; ++other)
                    for (int k = 0; k < kSize; ++k) sum[k] += team_sums[other][lane * kSize + k];
        }
        if (in_slice && team == 0) write_sum(out + pack * kSize, sum, accumulate);
    }
}

// Column sums of a matrix in chunks of rows; out: (chunks, channels), one row per chunk.
template <class T>
struct ColumnSums {
    float* out;
    const T* in;
    int rows, channels, rows_per_chunk, slices, packs_per_slice;
    bool accumulate;
};

template <class Geometry, class T>
__global__ void column_sums_kernel(ColumnSums<T> op) {
    const int slice = int(blockIdx.x) % op.slices, chunk = int(blockIdx.x) / op.slices;
    const int packs = op.channels / (Geometry::pack_bytes / int(sizeof(T)));
    const int first = slice * op.packs_per_slice,
              end = first + op.packs_per_slice < packs ? first + op.packs_per_slice : packs;
    const int first_row = chunk * op.rows_per_chunk;
    const int count = op.rows - first_row < op.rows_per_chunk ? op.rows - first_row : op.rows_per_chunk;
    block_row_sum<Geometry>(op.out + std::size_t(chunk) * op.channels, op.in, op.channels, Slice{first, end}, count,
                            [first_row](int i) { return first_row + i; }, op.accumulate);
}

template <class Geometry, class T>
void launch_column_sums(float* out, const T* in, int rows, int channels, int rows_per_chunk, int packs_per_slice,
                        bool accumulate, StreamRef stream) {
    const int packs = channels / (Geometry::pack_bytes / int(sizeof(T)));
    const int slices = ceil_div(packs, packs_per_slice),
              chunks = ceil_div(rows, rows_per_chunk);
    simt::launch<column_sums_kernel<Geometry, T>>({.grid = unsigned(slices) * chunks, .block = Geometry::threads,
                                                   .stream = stream},
                                                  ColumnSums<T>{out, in, rows, channels, rows_per_chunk, slices,
                                                                packs_per_slice, accumulate});
}

// out[chunk, c] (+)= sum over the rows of that chunk of in[row, c]; the last chunk may be shorter. If rows_per_chunk >=
// rows, out has one row. Eight warps per block on a GPU: not measured yet. With several chunks a CPU's thread processes
// whole rows, with one chunk slices of 1 KiB.
template <class T>
void column_sums(float* out, const T* in, int rows, int channels, int rows_per_chunk, bool accumulate,
                 StreamRef stream) {
    if constexpr (simt::gpu_geometry)
        launch_column_sums<RowSumGeometry<32, 8, kGpuPackBytes>>(out, in, rows, channels, rows_per_chunk, 32,
                                                                 accumulate, stream);
    else {
        const int slice_bytes = rows_per_chunk < rows ? channels * int(sizeof(T)) : 1024;
        if (channels % kCpuPackElements == 0)
            launch_column_sums<RowSumGeometry<1, 1, kCpuRowPackBytes<T>>>(
                out, in, rows, channels, rows_per_chunk, slice_bytes / kCpuRowPackBytes<T>, accumulate, stream);
        else
            launch_column_sums<RowSumGeometry<1, 1, 16>>(out, in, rows, channels, rows_per_chunk, slice_bytes / 16,
                                                         accumulate, stream);
    }
}

}  // namespace kernels
