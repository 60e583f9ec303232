// flash_backward_gpu.cu - the backward pass of flash.h: one kernel for delta and dq, one for dk and dv
//
// Both recompute p = 2^(c s - log2(e) logsumexp), with s = q . k and c = log2(e) / sqrt(head_size); ds = p (dp - delta)
// with dp = dout . v. The first kernel also computes the delta of its own queries, because it reads dout anyway; the
// second kernel needs the delta of all queries and runs after it. Its rows are keys and its columns queries, so that
// the tensor cores leave p^T and ds^T in the registers that dv = p^T dout and dk = ds^T q use as operands.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/attention/check.h"
#include "kernels/attention/flash.cuh"

namespace kernels {

using namespace flash;

namespace {

constexpr float kLog2E = std::numbers::log2e_v<float>;

// delta[fragment of rows][group, group + 8] of the warp's queries starting at position `first`, 0 from `end` on. The
// four lanes of a row share its packs.
template <int HeadSize, int Fragments>
__device__ void compute_delta(float (&delta)[Fragments][2], const bf16* own_dout, Rows<const bf16> out_rows, int first,
                              int end, ThreadPosition thread) {
    UNROLLED for (int g = 0; g < Fragments; ++g)
        UNROLLED for (int half = 0; half < 2; ++half) {
            const int row = g * 16 + half * 8 + thread.group;
            float sum = 0.0f;
            UNROLLED for (int first_channel = 0; first_channel < HeadSize; first_channel += 4 * kPackSize) {
                const int channel = first_channel + thread.lane % 4 * kPackSize;
                if (first + row >= end || channel >= HeadSize) continue;
                const auto dout = load<kGpuPackBytes>(own_dout + row * kPitch<HeadSize> + channel);
                const auto out = load<kGpuPackBytes>(out_rows[first + row] + channel);
                UNROLLED for (int i = 0; i < kPackSize; ++i) sum += to_float(dout[i]) * to_float(out[i]);
            }
            delta[g][half] = warp_sum<4>(sum);
        }
}

// Causal mask: where a query does not attend to a key, p and ds become exactly 0. dp is masked as well, because it may
// be infinite or NaN there, and 0 * NaN is NaN. Keys >= seq_len come after every query, so the same test masks them.
template <int Fragments, int Eights, class Masked>
__device__ void mask(Sums<Fragments, Eights>& scores, Sums<Fragments, Eights>& dp, ThreadPosition thread,
                     Masked&& masked) {
    for_each(scores, thread,
             [&](int row, int column, float& score) { score = masked(row, column) ? -INFINITY : score; });
    for_each(dp, thread, [&](int row, int column, float& x) { x = masked(row, column) ? 0.0f : x; });
}

// Shared memory: queries and dout, then two buffers of keys and values.
template <int HeadSize, bool Documents>
__global__ void __launch_bounds__(kFlashThreads, 2) flash_dq_kernel(AttentionBackward<bf16> op, int tiles,
                                                               float exponent_scale, float scale) {
    constexpr Tile kTile = tiles_for(HeadSize).dq;
    constexpr int kFragments = kTile.fragments, kKeys = kTile.columns, kRowsSize = kTile.rows() * kPitch<HeadSize>;
    SIMT_DYN_SHARED(bf16, shared);
    bf16* const dout = shared + kRowsSize;

    const ThreadPosition thread;
    const Task task(tiles, op.shape);
    const int seq_len = op.shape.seq_len;
    const auto rows = [&](int part) { return task.rows<HeadSize>(op.qkv, op.shape, 3, part); };
    const Queries queries(task, kTile, tiles, seq_len, thread.warp);
    const DoubleBuffer<HeadSize, kKeys> buffers{dout + kRowsSize, rows(1), rows(2), seq_len};
    bf16 *const own_queries = shared + queries.own_row * kPitch<HeadSize>, *const own_dout = own_queries + kRowsSize;
    const FirstKeys<Documents> starts(op, task);
    const int block_start = starts[queries.block] / kKeys * kKeys;

    AsyncCopies copies;
    copy_tile<HeadSize, kTile.rows()>(copies, shared, rows(0), queries.block, seq_len);
    copy_tile<HeadSize, kTile.rows()>(copies, dout, task.rows<HeadSize>(op.dout, op.shape, 1, 0), queries.block,
                                      seq_len);
    buffers.fetch(copies, block_start);

    // log2(e) logsumexp; positions from seq_len on use 0, and their results are not stored
    float exponent[kFragments][2];
    UNROLLED for (int g = 0; g < kFragments; ++g)
        UNROLLED for (int half = 0; half < 2; ++half) {
            const int query = queries.first + g * 16 + half * 8 + thread.group;
            exponent[g][half] = query < seq_len ? kLog2E * op.logsumexp[task.statistics + query] : 0.0f;
        }

    copies.wait();
    __syncthreads();

    float delta[kFragments][2];
    compute_delta<HeadSize>(delta, own_dout, task.rows<HeadSize>(op.out, op.shape, 1, 0), queries.first, seq_len,
                            thread);
    const Operand<HeadSize, kFragments, kTile.keeps_rows> own_q(own_queries, thread), own_g(own_dout, thread);
    Sums<kFragments, HeadSize / 8> dq = {};
    const auto step = [&](int first_key) {
        Sums<kFragments, kKeys / 8> scores, ds;
        multiply(scores, own_q, buffers.first(first_key), thread);
        multiply(ds, own_g, buffers.second(first_key), thread);
        if (first_key + kKeys - 1 > queries.first)
            mask(scores, ds, thread, [&](int query, int key) { return first_key + key > queries.first + query; });
        mask_documents(scores, thread, starts, queries.first, first_key);
        UNROLLED for (int g = 0; g < kFragments; ++g)
            UNROLLED for (int c = 0; c < kKeys / 8; ++c)
                UNROLLED for (int i = 0; i < 4; ++i) {
                    const float p = fast_exp2(fmaf(scores[g][c][i], exponent_scale, -exponent[g][i / 2]));
                    ds[g][c][i] = p * (ds[g][c][i] - delta[g][i / 2]);
                }
        accumulate<HeadSize>(dq, ds, buffers.first(first_key), thread);
    };
    for (int first_key = block_start; first_key < queries.end_key; first_key += kKeys) {
        if (first_key + kKeys < queries.end_key) buffers.fetch(copies, first_key + kKeys);
        // skip tiles that are masked for this whole warp
        if (first_key <= queries.last && (!Documents || starts[queries.first] < first_key + kKeys)) step(first_key);
        copies.wait();
        __syncthreads();
    }

    float scales[kFragments][2];
    UNROLLED for (int g = 0; g < kFragments; ++g)
        UNROLLED for (int half = 0; half < 2; ++half) {
            const int query = queries.first + g * 16 + half * 8 + thread.group;
            scales[g][half] = scale;
            if (thread.pair == 0 && query < seq_len) op.delta[task.statistics + query] = delta[g][half];
        }
    store_rows<HeadSize>(task.rows<HeadSize>(op.dqkv, op.shape, 3, 0), queries.first, seq_len, dq, scales,
                         own_queries, thread);
}

// Shared memory: keys and values, two buffers of queries and dout, then two buffers of log2(e) logsumexp and delta.
template <int HeadSize, bool Documents>
__global__ void __launch_bounds__(kFlashThreads, 2) flash_dkv_kernel(AttentionBackward<bf16> op, int tiles,
                                                                float exponent_scale, float scale) {
    constexpr Tile kTile = tiles_for(HeadSize).dkv;
    constexpr int kFragments = kTile.fragments, kQueries = kTile.columns, kRowsSize = kTile.rows() * kPitch<HeadSize>;
    static_assert(kTile.rows() % kQueries == 0, "the first tile of queries begins with the block's first key");
    static_assert(2 * kQueries <= kFlashThreads, "a thread fetches at most one of a tile's statistics");
    SIMT_DYN_SHARED(bf16, shared);
    bf16* const values = shared + kRowsSize;

    const ThreadPosition thread;
    const Task task(tiles, op.shape);  // the key tile with most queries comes first
    const int seq_len = op.shape.seq_len;
    const auto rows = [&](int part) { return task.rows<HeadSize>(op.qkv, op.shape, 3, part); };
    const DoubleBuffer<HeadSize, kQueries> buffers{
        values + kRowsSize, rows(0), task.rows<HeadSize>(op.dout, op.shape, 1, 0), seq_len};
    float* const statistics = reinterpret_cast<float*>(buffers.memory + 4 * buffers.kSize);
    const int block_key = task.tile * kTile.rows(), own_row = thread.warp * 16 * kFragments,
              first_key = block_key + own_row;
    const FirstKeys<Documents> starts(op, task);
    // Whether a query from this one on attends to a key of the block.
    const auto has_query = [&](int first_query) {
        return first_query < seq_len && (!Documents || starts[first_query] < block_key + kTile.rows());
    };
    bf16 *const own_keys = shared + own_row * kPitch<HeadSize>, *const own_values = own_keys + kRowsSize;

    AsyncCopies copies;
    copy_tile<HeadSize, kTile.rows()>(copies, shared, rows(1), block_key, seq_len);
    copy_tile<HeadSize, kTile.rows()>(copies, values, rows(2), block_key, seq_len);
    buffers.fetch(copies, block_key);

    // Each thread prefetches at most one statistic (logsumexp or delta) of the next tile before the arithmetic, and
    // stores it to shared memory after it, which hides the latency. Queries >= seq_len add nothing to dk and dv,
    // because they and their dout are zero.
    const auto load_statistic = [&](int first_query) {
        const int query = first_query + threadIdx.x % kQueries;
        if (threadIdx.x >= 2 * kQueries || query >= seq_len) return 0.0f;
        return threadIdx.x < kQueries ? kLog2E * op.logsumexp[task.statistics + query]
                                      : op.delta[task.statistics + query];
    };
    const auto store_statistic = [&](int first_query, float x) {
        if (threadIdx.x < 2 * kQueries) statistics[buffers.index(first_query) * (2 * kQueries) + threadIdx.x] = x;
    };
    store_statistic(block_key, load_statistic(block_key));

    copies.wait();
    __syncthreads();

    const Operand<HeadSize, kFragments, kTile.keeps_rows> own_k(own_keys, thread), own_v(own_values, thread);
    Sums<kFragments, HeadSize / 8> dk = {}, dv = {};
    const auto step = [&](int first_query) {
        const bf16 *const queries = buffers.first(first_query), *const dout = buffers.second(first_query);
        const float *const exponent = statistics + buffers.index(first_query) * (2 * kQueries);
        const float *const delta = exponent + kQueries;
        Sums<kFragments, kQueries / 8> p, ds;
        multiply(p, own_k, queries, thread);
        multiply(ds, own_v, dout, thread);
        if (first_key + 16 * kFragments - 1 > first_query)
            mask(p, ds, thread, [&](int key, int query) { return first_key + key > first_query + query; });
        if (Documents && first_key < starts[first_query + kQueries - 1])
            UNROLLED for (int c = 0; c < kQueries / 8; ++c)
                UNROLLED for (int i = 0; i < 2; ++i) {
                    const int start = starts[first_query + c * 8 + thread.pair + i] - first_key - thread.group;
                    UNROLLED for (int g = 0; g < kFragments; ++g)
                        UNROLLED for (int half = 0; half < 2; ++half)
                            if (g * 16 + half * 8 < start) p[g][c][half * 2 + i] = -INFINITY;
                }
        UNROLLED for (int c = 0; c < kQueries / 8; ++c) {
            const auto exponents = load<8>(exponent + c * 8 + thread.pair),
                       deltas = load<8>(delta + c * 8 + thread.pair);
            UNROLLED for (int g = 0; g < kFragments; ++g)
                UNROLLED for (int i = 0; i < 4; ++i) {
                    p[g][c][i] = fast_exp2(fmaf(p[g][c][i], exponent_scale, -exponents[i % 2]));
                    ds[g][c][i] = p[g][c][i] * (ds[g][c][i] - deltas[i % 2]);
                }
        }
        accumulate<HeadSize>(dv, p, dout, thread);
        accumulate<HeadSize>(dk, ds, queries, thread);
    };
    bool has_next = true;
    for (int first_query = block_key; has_next; first_query += kQueries) {
        const int next_query = first_query + kQueries;
        has_next = has_query(next_query);
        float next_statistic = 0.0f;
        if (has_next) {
            buffers.fetch(copies, next_query);
            next_statistic = load_statistic(next_query);
        }
        // skip tiles that are masked for all keys of this warp, and warps whose keys lie beyond the sequence
        if (first_key < std::min(next_query, seq_len) &&
            (!Documents || starts[first_query] < first_key + 16 * kFragments))
            step(first_query);
        if (has_next) store_statistic(next_query, next_statistic);
        copies.wait();
        __syncthreads();
    }

    float scales[kFragments][2], ones[kFragments][2];
    UNROLLED for (int g = 0; g < kFragments; ++g)
        UNROLLED for (int half = 0; half < 2; ++half) scales[g][half] = scale, ones[g][half] = 1.0f;
    store_rows<HeadSize>(task.rows<HeadSize>(op.dqkv, op.shape, 3, 1), first_key, seq_len, dk, scales, own_keys,
                         thread);
    store_rows<HeadSize>(task.rows<HeadSize>(op.dqkv, op.shape, 3, 2), first_key, seq_len, dv, ones, own_values,
                         thread);
}

}  // namespace

void flash_attention_backward(const AttentionBackward<bf16>& op, StreamRef stream) {
    check_attention(op);
    with_documents(op, [&]<int HeadSize, bool Documents>() {
        constexpr Tile kDq = tiles_for(HeadSize).dq, kDkv = tiles_for(HeadSize).dkv;
        const std::size_t sequences = op.shape.sequences();
        const unsigned dq_tiles = tiles_of(op.shape.seq_len, kDq), dkv_tiles = tiles_of(op.shape.seq_len, kDkv);
        const unsigned dq_blocks = attention_blocks(dq_tiles, sequences),
                       dkv_blocks = attention_blocks(dkv_tiles, sequences);
        const float exponent_scale = float(std::numbers::log2e / std::sqrt(double(HeadSize))),
                    scale = float(1 / std::sqrt(double(HeadSize)));
        simt::launch<flash_dq_kernel<HeadSize, Documents>>(
            {.grid = dq_blocks, .block = kFlashThreads, .shared_bytes = tile_bytes<HeadSize>(kDq, 2, 2),
             .stream = stream}, op, int(dq_tiles),
            exponent_scale, scale);
        simt::launch<flash_dkv_kernel<HeadSize, Documents>>(
            {.grid = dkv_blocks, .block = kFlashThreads,
             .shared_bytes = tile_bytes<HeadSize>(kDkv, 2, 2) + 4 * kDkv.columns * sizeof(float),
             .stream = stream}, op, int(dkv_tiles), exponent_scale, scale);
    });
}

}  // namespace kernels
