// plain_gpu.cu - attention.h in float arithmetic, without tensor cores; also the reference for the implementations that
// use them
//
// Geometry  A block owns a tile of rows and iterates over tiles of 32 columns (16 with heads above 128), staged in
//           shared memory as floats. Forward and dq: rows are queries, columns keys; dk and dv: rows are keys, columns
//           queries. Eight lanes share four rows: a lane computes the scores of its rows and columns lane, lane + 8,
//           ..., and accumulates the packs lane, lane + 8, ... of four channels of each result row.
// Cost      A product of 4 rows by 4 columns reads 8 packs of shared memory for 64 multiply-adds: bound by arithmetic,
//           not by shared memory. Rows of a tile are padded by one pack, so that the eight lanes of a row read from
//           different banks.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/check.h"
#include "kernels/attention/implementations.h"
#include "kernels/math.cuh"
#include "kernels/pack.cuh"
#include "kernels/reduce.cuh"

namespace kernels {
namespace {

constexpr int kLanes = 8, kRowsPerLane = 4;
constexpr int kFloatPack = 4;  // floats in 16 bytes

using FloatPack = Pack<float, kGpuPackBytes>;

// LanePacks: packs (four channels) per lane, for head sizes up to 32 * LanePacks; channels >= head_size are zero.
// Rows: rows of the block's tile; eight lanes share four of them. Columns: columns per tile of the loop.
// Kernels use __launch_bounds__(threads, 1): shared memory limits the resident blocks anyway, and without the minimum
// of one block per SM some kernels spill.
template <int LanePacks, int Rows, int Columns>
struct Geometry {
    static constexpr int lane_packs = LanePacks;
    static constexpr int columns = Columns, columns_per_lane = Columns / kLanes;
    static constexpr int weights_pitch = Columns + kFloatPack;  // floats between rows of a tile of weights
    static constexpr int rows = Rows, threads = kLanes * Rows / kRowsPerLane;
    static constexpr int channels = kLanes * kFloatPack * LanePacks, pitch = channels + kFloatPack;
};

// This thread's position in its block.
struct ThreadPosition {
    int lane, first_row;
    __device__ ThreadPosition() : lane(threadIdx.x % kLanes), first_row(threadIdx.x / kLanes * kRowsPerLane) {}
};

// The tile, batch element and head of this block; `sequence` = batch * heads + head. Blocks with the most work should
// be scheduled first, so a kernel may reverse the tile number.
struct Task {
    int tile, batch, head;
    std::size_t statistics;  // offset of the sequence in logsumexp and delta
    __device__ explicit Task(const AttentionShape& shape) {
        const int heads = shape.heads, sequences = shape.batch * heads, sequence = blockIdx.x % sequences;
        tile = blockIdx.x / sequences, batch = sequence / heads, head = sequence % heads;
        statistics = std::size_t(sequence) * shape.seq_len;
    }
};

// The first key that a query attends to; positions from seq_len on count as the last one.
template <class Op>
__device__ int first_key_of(const Op& op, const Task& task, int query) {
    const int seq_len = op.shape.seq_len;
    return op.starts.empty() ? 0 : op.starts[std::size_t(task.batch) * seq_len + std::min(query, seq_len - 1)];
}

// Index of the first element of query, key or value (part 0, 1, 2) of a position in qkv; with parts = 1, of a position
// in out.
__device__ inline std::size_t element(const AttentionShape& shape, const Task& task, int position, int parts,
                                      int part) {
    const std::size_t token = std::size_t(task.batch) * shape.seq_len + position;
    return ((token * parts + part) * shape.heads + task.head) * shape.head_size;
}

// Loads `Rows` positions from `first` on as float rows of a tile; (parts, part) as in element(). Positions >= seq_len
// and channels beyond head_size become zero.
template <class G, int Rows, class T>
__device__ void load_tile(float* tile, std::span<const T> tensor, const AttentionShape& shape, const Task& task,
                          int first, int parts, int part) {
    const T* const from = &tensor[element(shape, task, first, parts, part)];
    const std::size_t stride = parts * (std::size_t(shape.heads) * shape.head_size);
    const int valid = std::min(Rows, shape.seq_len - first), head_size = shape.head_size;
    constexpr int kSize = Pack<T, kGpuPackBytes>::size, kPacksPerRow = G::channels / kSize;
    for (int i = threadIdx.x; i < Rows * kPacksPerRow; i += G::threads) {
        const int row = i / kPacksPerRow, channel = i % kPacksPerRow * kSize;
        Pack<T, kGpuPackBytes> pack{};
        if (row < valid && channel < head_size) pack = load<kGpuPackBytes>(from + row * stride + channel);
        for (int k = 0; k < kSize; k += kFloatPack) {
            FloatPack wide;
            for (int e = 0; e < kFloatPack; ++e) wide[e] = to_float(pack[k + e]);
            store(tile + row * G::pitch + channel + k, wide);
        }
    }
}

template <class G>
using Products = float[kRowsPerLane][G::columns_per_lane];

// products[r][k] = row (first_row + r) . column (lane + 8 k)
template <class G>
__device__ void multiply(Products<G>& products, const float* rows, const float* columns, ThreadPosition thread) {
    for (int r = 0; r < kRowsPerLane; ++r)
        for (int k = 0; k < G::columns_per_lane; ++k) products[r][k] = 0.0f;
    for (int c = 0; c < G::channels; c += kFloatPack) {
        FloatPack row[kRowsPerLane];
        for (int r = 0; r < kRowsPerLane; ++r)
            row[r] = load<kGpuPackBytes>(rows + (thread.first_row + r) * G::pitch + c);
        for (int k = 0; k < G::columns_per_lane; ++k) {
            const FloatPack column = load<kGpuPackBytes>(columns + (thread.lane + k * kLanes) * G::pitch + c);
            for (int r = 0; r < kRowsPerLane; ++r)
                for (int e = 0; e < kFloatPack; ++e) products[r][k] += row[r][e] * column[e];
        }
    }
}

template <class G>
__device__ void store_weights(float* weights, const Products<G>& products, ThreadPosition thread) {
    for (int r = 0; r < kRowsPerLane; ++r)
        for (int k = 0; k < G::columns_per_lane; ++k)
            weights[(thread.first_row + r) * G::weights_pitch + thread.lane + k * kLanes] = products[r][k];
}

// A lane's accumulators for its rows of a result: packs lane, lane + 8, ... of the channels from `first_channel` on.
template <int LanePacks>
struct Sums {
    float element[kRowsPerLane][LanePacks][kFloatPack] = {};

    // += sum over columns of weights[row][column] * column's channels
    template <class G>
    __device__ void accumulate(const float* weights, const float* columns, ThreadPosition thread,
                               int first_channel = 0) {
        for (int first = 0; first < G::columns; first += kFloatPack) {
            FloatPack weight[kRowsPerLane];
            for (int r = 0; r < kRowsPerLane; ++r)
                weight[r] = load<kGpuPackBytes>(weights + (thread.first_row + r) * G::weights_pitch + first);
            for (int column = 0; column < kFloatPack; ++column)
                for (int p = 0; p < LanePacks; ++p) {
                    const int channel = first_channel + (thread.lane + p * kLanes) * kFloatPack;
                    const FloatPack values = load<kGpuPackBytes>(columns + (first + column) * G::pitch + channel);
                    for (int r = 0; r < kRowsPerLane; ++r)
                        for (int e = 0; e < kFloatPack; ++e) element[r][p][e] += weight[r][column] * values[e];
                }
        }
    }

    // Stores row r of the lane's rows, multiplied by scale, to a row of a tensor.
    template <class T>
    __device__ void store_row(T* to, int r, float scale, int head_size, ThreadPosition thread,
                              int first_channel = 0) const {
        for (int p = 0; p < LanePacks; ++p) {
            const int channel = first_channel + (thread.lane + p * kLanes) * kFloatPack;
            if (channel >= head_size) continue;
            Pack<T, kFloatPack * sizeof(T)> pack;
            for (int e = 0; e < kFloatPack; ++e) pack[e] = round_to<T>(element[r][p][e] * scale);
            store(to + channel, pack);
        }
    }
};

// Shared memory: queries, keys, values, weights.
template <class T, class G>
__global__ void __launch_bounds__(G::threads, 1)
attention_forward_kernel(AttentionForward<T> op, int tiles, float scale) {
    SIMT_DYN_SHARED(float, shared);
    float *queries = shared, *keys = queries + G::rows * G::pitch, *values = keys + G::columns * G::pitch,
          *weights = values + G::columns * G::pitch;
    const ThreadPosition thread;
    Task task(op.shape);
    task.tile = tiles - 1 - task.tile;
    const int first_query = task.tile * G::rows, end_key = std::min(first_query + G::rows, op.shape.seq_len);
    load_tile<G, G::rows>(queries, op.qkv, op.shape, task, first_query, 3, 0);

    Sums<G::lane_packs> out;
    float maximum[kRowsPerLane], sum[kRowsPerLane];
    int start[kRowsPerLane];
    for (int r = 0; r < kRowsPerLane; ++r) {
        maximum[r] = -FLT_MAX, sum[r] = 0.0f;  // finite, because a query may attend to none of the first keys
        start[r] = first_key_of(op, task, first_query + thread.first_row + r);
    }

    for (int first_key = first_key_of(op, task, first_query) / G::columns * G::columns; first_key < end_key;
         first_key += G::columns) {
        __syncthreads();  // the tiles of keys and values are free again
        load_tile<G, G::columns>(keys, op.qkv, op.shape, task, first_key, 3, 1);
        load_tile<G, G::columns>(values, op.qkv, op.shape, task, first_key, 3, 2);
        __syncthreads();

        Products<G> score;
        multiply<G>(score, queries, keys, thread);
        for (int r = 0; r < kRowsPerLane; ++r) {
            const int query = first_query + thread.first_row + r;
            float largest = maximum[r];
            for (int k = 0; k < G::columns_per_lane; ++k) {
                const int key = first_key + thread.lane + k * kLanes;
                score[r][k] = start[r] <= key && key <= query ? score[r][k] * scale : -INFINITY;
                largest = fmaxf(largest, score[r][k]);
            }
            largest = warp_max<kLanes>(largest);
            const float correction = fast_exp(maximum[r] - largest);
            maximum[r] = largest;
            sum[r] *= correction;
            for (int k = 0; k < G::columns_per_lane; ++k) {
                score[r][k] = fast_exp(score[r][k] - largest);
                sum[r] += score[r][k];
            }
            for (auto& pack : out.element[r])
                for (float& x : pack) x *= correction;
        }
        store_weights<G>(weights, score, thread);
        __syncwarp();  // the eight lanes that share rows read each other's weights
        out.template accumulate<G>(weights, values, thread);
    }

    for (int r = 0; r < kRowsPerLane; ++r) {
        const int query = first_query + thread.first_row + r;
        const float total = warp_sum<kLanes>(sum[r]);
        if (query >= op.shape.seq_len) continue;
        out.store_row(&op.out[element(op.shape, task, query, 1, 0)], r, 1.0f / total, op.shape.head_size, thread);
        if (thread.lane == 0) op.logsumexp[task.statistics + query] = maximum[r] + logf(total);
    }
}

// delta = dout . out; eight lanes per row.
template <class T>
__global__ void attention_delta_kernel(AttentionBackward<T> op, std::size_t rows) {
    using Pack = kernels::Pack<T, kGpuPackBytes>;
    // index in (batch, position, head), the order of `out`
    const std::size_t row = (std::size_t(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
    const int lane = threadIdx.x % kLanes;
    float sum = 0.0f;
    if (row < rows)
        for (int c = lane * Pack::size; c < op.shape.head_size; c += kLanes * Pack::size) {
            const Pack dout = load<kGpuPackBytes>(&op.dout[row * op.shape.head_size + c]),
                       out = load<kGpuPackBytes>(&op.out[row * op.shape.head_size + c]);
            for (int k = 0; k < Pack::size; ++k) sum += to_float(dout[k]) * to_float(out[k]);
        }
    sum = warp_sum<kLanes>(sum);
    const std::size_t heads = op.shape.heads, seq_len = op.shape.seq_len, head = row % heads, token = row / heads;
    if (row < rows && lane == 0) op.delta[(token / seq_len * heads + head) * seq_len + token % seq_len] = sum;
}

// Shared memory: queries and dout of the block, keys and values of the step, weights.
template <class T, class G>
__global__ void __launch_bounds__(G::threads, 1) attention_dq_kernel(AttentionBackward<T> op, int tiles, float scale) {
    SIMT_DYN_SHARED(float, shared);
    float *queries = shared, *dout = queries + G::rows * G::pitch, *keys = dout + G::rows * G::pitch,
          *values = keys + G::columns * G::pitch, *weights = values + G::columns * G::pitch;
    const ThreadPosition thread;
    Task task(op.shape);
    task.tile = tiles - 1 - task.tile;
    const int first_query = task.tile * G::rows, end_key = std::min(first_query + G::rows, op.shape.seq_len);
    load_tile<G, G::rows>(queries, op.qkv, op.shape, task, first_query, 3, 0);
    load_tile<G, G::rows>(dout, op.dout, op.shape, task, first_query, 1, 0);
    float logsumexp[kRowsPerLane], delta[kRowsPerLane];
    int start[kRowsPerLane];
    for (int r = 0; r < kRowsPerLane; ++r) {
        const int query = first_query + thread.first_row + r;
        const std::size_t at = task.statistics + std::min(query, op.shape.seq_len - 1);
        logsumexp[r] = op.logsumexp[at], delta[r] = op.delta[at], start[r] = first_key_of(op, task, query);
    }

    Sums<G::lane_packs> dq;
    for (int first_key = first_key_of(op, task, first_query) / G::columns * G::columns; first_key < end_key;
         first_key += G::columns) {
        __syncthreads();  // the tiles of keys and values are free again
        load_tile<G, G::columns>(keys, op.qkv, op.shape, task, first_key, 3, 1);
        load_tile<G, G::columns>(values, op.qkv, op.shape, task, first_key, 3, 2);
        __syncthreads();

        Products<G> score, ds;
        multiply<G>(score, queries, keys, thread);
        multiply<G>(ds, dout, values, thread);
        for (int r = 0; r < kRowsPerLane; ++r)
            for (int k = 0; k < G::columns_per_lane; ++k) {
                const int key = first_key + thread.lane + k * kLanes;
                const bool attends = start[r] <= key && key <= first_query + thread.first_row + r;
                ds[r][k] = attends ? fast_exp(score[r][k] * scale - logsumexp[r]) * (ds[r][k] - delta[r]) : 0.0f;
            }
        store_weights<G>(weights, ds, thread);
        __syncwarp();
        dq.template accumulate<G>(weights, keys, thread);
    }
    for (int r = 0; r < kRowsPerLane; ++r)
        if (const int query = first_query + thread.first_row + r; query < op.shape.seq_len)
            dq.store_row(&op.dqkv[element(op.shape, task, query, 3, 0)], r, scale, op.shape.head_size, thread);
}

// Shared memory: keys and values of the block, queries and dout of the step, weights of p and of ds. blockIdx.y selects
// the packs of channels that a block sums.
template <class T, class G, int PacksPerBlock>
__global__ void __launch_bounds__(G::threads, 1) attention_dkv_kernel(AttentionBackward<T> op, float scale) {
    SIMT_DYN_SHARED(float, shared);
    float *keys = shared, *values = keys + G::rows * G::pitch, *queries = values + G::rows * G::pitch,
          *dout = queries + G::columns * G::pitch, *p_weights = dout + G::columns * G::pitch,
          *ds_weights = p_weights + G::rows * G::weights_pitch;
    const ThreadPosition thread;
    const Task task(op.shape);
    const int first_key = task.tile * G::rows, first_channel = blockIdx.y * PacksPerBlock * kLanes * kFloatPack;
    load_tile<G, G::rows>(keys, op.qkv, op.shape, task, first_key, 3, 1);
    load_tile<G, G::rows>(values, op.qkv, op.shape, task, first_key, 3, 2);

    Sums<PacksPerBlock> dk, dv;
    static_assert(G::rows == G::columns, "the first tile of queries is the one on the diagonal");
    for (int first_query = first_key; first_query < op.shape.seq_len; first_query += G::columns) {
        if (first_key_of(op, task, first_query) >= first_key + G::rows) break;  // of later documents
        __syncthreads();  // the tiles of queries and dout are free again
        load_tile<G, G::columns>(queries, op.qkv, op.shape, task, first_query, 3, 0);
        load_tile<G, G::columns>(dout, op.dout, op.shape, task, first_query, 1, 0);
        __syncthreads();

        Products<G> p, ds;
        multiply<G>(p, keys, queries, thread);
        multiply<G>(ds, values, dout, thread);
        for (int k = 0; k < G::columns_per_lane; ++k) {
            const int query = first_query + thread.lane + k * kLanes;
            const std::size_t at = task.statistics + std::min(query, op.shape.seq_len - 1);
            const float logsumexp = op.logsumexp[at], delta = op.delta[at];
            const int start = first_key_of(op, task, query);
            for (int r = 0; r < kRowsPerLane; ++r) {
                const int key = first_key + thread.first_row + r;
                const bool attends = start <= key && key <= query && query < op.shape.seq_len;
                p[r][k] = attends ? fast_exp(p[r][k] * scale - logsumexp) : 0.0f;
                ds[r][k] = p[r][k] * (ds[r][k] - delta);
            }
        }
        store_weights<G>(p_weights, p, thread);
        store_weights<G>(ds_weights, ds, thread);
        __syncwarp();
        dv.template accumulate<G>(p_weights, dout, thread, first_channel);
        dk.template accumulate<G>(ds_weights, queries, thread, first_channel);
    }
    for (int r = 0; r < kRowsPerLane; ++r)
        if (const int key = first_key + thread.first_row + r; key < op.shape.seq_len) {
            const int size = op.shape.head_size;
            dk.store_row(&op.dqkv[element(op.shape, task, key, 3, 1)], r, scale, size, thread, first_channel);
            dv.store_row(&op.dqkv[element(op.shape, task, key, 3, 2)], r, 1.0f, size, thread, first_channel);
        }
}

// Bytes of shared memory for tiles of rows, of columns, and of weights.
template <class G>
constexpr std::size_t shared_bytes(int row_tiles, int column_tiles, int weight_tiles) {
    return ((row_tiles * G::rows + column_tiles * G::columns) * G::pitch + weight_tiles * G::rows * G::weights_pitch) *
           sizeof(float);
}

// Calls launch.template operator()<LanePacks>() with the smallest of three numbers of packs that hold head_size. Each
// further instantiation would add 6 s of compile time.
template <class Launch>
void with_packs(int head_size, Launch&& launch) {
    if (head_size <= 64) launch.template operator()<2>();
    else if (head_size <= 128) launch.template operator()<4>();
    else launch.template operator()<8>();
}

}  // namespace

// 64 queries per block: 43 KiB of shared memory at head size 64, 75 at 128. Head sizes above 128 use 32 queries and 16
// keys, 68 KiB: tiles of 32 keys would exceed the 99 KiB that a block has on compute capability 8.6, 8.9 and 12.0, and
// allow two blocks of two warps instead of three on 9.0. Not measured on a GPU yet.
template <class T>
void attention_forward(const AttentionForward<T>& op, StreamRef stream) {
    check_attention(op);
    with_packs(op.shape.head_size, [&]<int LanePacks>() {
        using G = Geometry<LanePacks, (LanePacks > 4 ? 32 : 64), (LanePacks > 4 ? 16 : 32)>;
        const int tiles = ceil_div(op.shape.seq_len, G::rows);
        simt::launch<attention_forward_kernel<T, G>>(
            {.grid = attention_blocks(tiles, op.shape.sequences()), .block = G::threads,
             .shared_bytes = shared_bytes<G>(1, 2, 1), .stream = stream}, op, tiles,
            1.0f / std::sqrt(float(op.shape.head_size)));
    });
}

// 32 rows and columns: 39 (dq) and 43 KiB (dk, dv) of shared memory at head size 64, 71 and 75 at 128. Head sizes above
// 128 use 16 of each, at most 68 KiB, because 32 would need 135 and 139. Not measured on a GPU yet.
template <class T>
void attention_backward(const AttentionBackward<T>& op, StreamRef stream) {
    check_attention(op);
    const std::size_t sequences = op.shape.sequences(), rows = op.shape.rows();
    const float scale = 1.0f / std::sqrt(float(op.shape.head_size));
    constexpr int kThreads = 256, kRowsPerBlock = kThreads / kLanes;
    const unsigned delta_blocks = attention_blocks(ceil_div(rows, kRowsPerBlock), 1);
    simt::launch<attention_delta_kernel<T>>({.grid = delta_blocks, .block = kThreads, .stream = stream}, op, rows);
    with_packs(op.shape.head_size, [&]<int LanePacks>() {
        using G = Geometry<LanePacks, (LanePacks > 4 ? 16 : 32), (LanePacks > 4 ? 16 : 32)>;
        // for dk and dv: more packs would not fit in registers, so blocks divide the channels
        constexpr int kPacksPerBlock = LanePacks > 4 ? 4 : LanePacks;
        const int tiles = ceil_div(op.shape.seq_len, G::rows);
        const unsigned grid = attention_blocks(tiles, sequences);
        simt::launch<attention_dq_kernel<T, G>>(
            {.grid = grid, .block = G::threads, .shared_bytes = shared_bytes<G>(2, 2, 1),
             .stream = stream}, op, tiles, scale);
        simt::launch<attention_dkv_kernel<T, G, kPacksPerBlock>>(
            {.grid = {grid, LanePacks / kPacksPerBlock}, .block = G::threads, .shared_bytes = shared_bytes<G>(2, 2, 2),
             .stream = stream}, op, scale);
    });
}

std::vector<AttentionMethod> attention_methods() {
    using enum AttentionMethod;
    return cudnn_version().empty() ? std::vector{flash, plain} : std::vector{cudnn, flash, plain};
}

template void attention_forward(const AttentionForward<float>&, StreamRef);
template void attention_forward(const AttentionForward<bf16>&, StreamRef);
template void attention_backward(const AttentionBackward<float>&, StreamRef);
template void attention_backward(const AttentionBackward<bf16>&, StreamRef);

}  // namespace kernels
