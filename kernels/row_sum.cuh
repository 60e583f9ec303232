// row_sum.cuh - a block sums rows of a matrix, channel by channel; shared by the gradients of biases, of LayerNorm's
// parameters and of the embeddings
//
//   out[c] (+)= sum over i < count of weight_of(i) in[row_of(i), c]        for the channels of one slice
//
// Rows begin every `pitch` elements. Sums in float. Their order depends only on `count` and the geometry, never on the
// scheduling of blocks or threads.
#pragma once
#include <algorithm>

#include "kernels/pack.cuh"
#include "kernels/reduce.cuh"

namespace kernels {

// A team is `Lanes` threads on neighbouring packs; the `Teams` teams of a block process the rows round-robin. A single
// thread processes its whole slice.
template <int Lanes_, int Teams_, int PackBytes_>
struct RowSumGeometry {
    static constexpr int lanes = Lanes_, teams = Teams_, pack_bytes = PackBytes_, threads = Lanes_ * Teams_;
    // Packs of a slice; on a CPU 1 KiB. Whole rows were up to 10 % faster on one core (embedding gradient), but would
    // leave all rows of a frequent token to a single core.
    static constexpr int slice_packs = threads > 1 ? lanes : 1024 / PackBytes_;
};

// Calls launch.template operator()<Geometry>() with GpuGeometry, or on a CPU with one thread.
template <class T, class GpuGeometry, class Launch>
void with_row_sum_geometry(int channels, Launch&& launch) {
    with_row_packs<T>(channels, [&]<int Lanes, int PackBytes>() {
        if constexpr (Lanes > 1) launch.template operator()<GpuGeometry>();
        else launch.template operator()<RowSumGeometry<1, 1, PackBytes>>();
    });
}

// Packs first .. end - 1 of every row; with more than one lane, at most `lanes` packs.
struct Slice {
    int first, end;
};
template <class Geometry, class T>
__device__ Slice slice_of(int channels, int slice, int slice_packs = Geometry::slice_packs) {
    const int packs = channels / (Geometry::pack_bytes / int(sizeof(T))), first = slice * slice_packs;
    return {first, std::min(first + slice_packs, packs)};
}
template <class Geometry, class T>
int count_slices(int channels, int slice_packs = Geometry::slice_packs) {
    return ceil_div(channels / (Geometry::pack_bytes / int(sizeof(T))), slice_packs);
}

struct NoWeights {
    constexpr __device__ float operator()(int) const { return 1.0f; }
};

template <int PackBytes, class T>
__device__ void add_pack(Partial<PackBytes / sizeof(T)>& sum, float weight, const T* address) {
    const Pack<T, PackBytes> pack = load<PackBytes>(address);
    for (int k = 0; k < Pack<T, PackBytes>::size; ++k) sum[k] += weight * to_float(pack[k]);
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
template <int AtOnce, int Size, class T, class RowOf, class WeightOf>
__device__ void thread_add_rows(float* out, const T* in, std::size_t pitch, Slice slice, int first, RowOf row_of,
                                bool accumulate, WeightOf weight_of) {
    const T* row[AtOnce];
    float weight[AtOnce];
    for (int r = 0; r < AtOnce; ++r) row[r] = in + row_of(first + r) * pitch, weight[r] = weight_of(first + r);
    for (int i = slice.first * Size; i < slice.end * Size; i += Size) {
        Partial<Size> sum;
        for (int k = 0; k < Size; ++k) {
            sum[k] = weight[0] * to_float(row[0][i + k]);
            for (int r = 1; r < AtOnce; ++r) sum[k] += weight[r] * to_float(row[r][i + k]);
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
template <int Size, class T, class RowOf, class WeightOf>
__device__ void thread_row_sum(float* out, const T* in, std::size_t pitch, Slice slice, int count, RowOf row_of,
                               bool accumulate, WeightOf weight_of) {
    constexpr int kAtOnce = 4;
    int i = 0;
    for (; i + kAtOnce <= count; i += kAtOnce)
        thread_add_rows<kAtOnce, Size>(out, in, pitch, slice, i, row_of, accumulate || i > 0, weight_of);
    for (; i < count; ++i) thread_add_rows<1, Size>(out, in, pitch, slice, i, row_of, accumulate || i > 0, weight_of);
    if (count == 0 && !accumulate)
        for (int k = slice.first * Size; k < slice.end * Size; ++k) out[k] = 0.0f;
}

// All threads of the block must call it, at most once per kernel. If count is 0, `out` becomes 0 unless accumulating.
template <class Geometry, class T, class RowOf, class WeightOf = NoWeights>
__device__ void block_row_sum(float* out, const T* in, std::size_t pitch, Slice slice, int count, RowOf row_of,
                              bool accumulate, WeightOf weight_of = {}) {
    if constexpr (Geometry::threads == 1)
        thread_row_sum<Geometry::pack_bytes / sizeof(T)>(out, in, pitch, slice, count, row_of, accumulate, weight_of);
    else {
        constexpr int kSize = Geometry::pack_bytes / sizeof(T);
        const int lane = threadIdx.x % Geometry::lanes, team = threadIdx.x / Geometry::lanes;
        const int pack = slice.first + lane;
        const bool in_slice = pack < slice.end;
        Partial<kSize> sum;
        if (in_slice)
            for (int i = team; i < count; i += Geometry::teams)
                add_pack<Geometry::pack_bytes>(sum, weight_of(i), in + row_of(i) * pitch + pack * kSize);

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

// Column sums of a matrix in chunks of rows, and of a second one that follows it, if any.
template <class T>
struct ColumnSums {
    float* out;  // (chunks, channels)
    const T* in;
    int rows, channels, rows_per_chunk;  // the last chunk may be shorter; one chunk: `rows` or more
    bool accumulate;
    float* second_out = nullptr;
    int pitch = channels;  // only of one matrix
};

// blockIdx.y selects the matrix.
template <class Geometry, class T>
__global__ void column_sums_kernel(ColumnSums<T> op, int slices, int slice_packs) {
    const int slice = int(blockIdx.x) % slices, chunk = int(blockIdx.x) / slices;
    const int first_row = chunk * op.rows_per_chunk, count = std::min(op.rows - first_row, op.rows_per_chunk);
    float* const out = blockIdx.y == 0 ? op.out : op.second_out;
    block_row_sum<Geometry>(out + std::size_t(chunk) * op.channels,
                            op.in + std::size_t(blockIdx.y) * op.rows * op.channels, op.pitch,
                            slice_of<Geometry, T>(op.channels, slice, slice_packs), count,
                            [first_row](int i) { return first_row + i; }, op.accumulate);
}

// Eight warps per block on a GPU: not measured yet. With several chunks a CPU's thread processes whole rows.
template <class GpuGeometry = RowSumGeometry<kWarp, 8, kGpuPackBytes>, class T>
void column_sums(const ColumnSums<T>& op, StreamRef stream) {
    with_row_sum_geometry<T, GpuGeometry>(op.channels, [&]<class Geometry>() {
        const int chunks = ceil_div(op.rows, op.rows_per_chunk);
        const int slice_packs = Geometry::threads == 1 && chunks > 1
                                    ? op.channels * int(sizeof(T)) / Geometry::pack_bytes : Geometry::slice_packs;
        const int slices = count_slices<Geometry, T>(op.channels, slice_packs);
        simt::launch<column_sums_kernel<Geometry, T>>(
            {.grid = {unsigned(slices * chunks), op.second_out ? 2u : 1u}, .block = Geometry::threads,
             .stream = stream}, op, slices, slice_packs);
    });
}

}  // namespace kernels
