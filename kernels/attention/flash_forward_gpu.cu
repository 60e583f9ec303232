// flash_forward_gpu.cu - the forward pass of flash.h
//
// Exponentials are powers of two: with s = q . k and c = log2(e) / sqrt(head_size), p = 2^(c s - c max), and one fused
// multiply-add computes the exponent. p, its sum and the logsumexp use the same rounded c max, so its rounding error
// cancels for scores of any magnitude.
#include <cfloat>
#include <cmath>
#include <numbers>

#include "kernels/attention/check.h"
#include "kernels/attention/flash.cuh"

namespace kernels {

using namespace flash;

namespace {

// A lane's running statistics of its rows: the maximum exponent, equal in the four lanes of a row, and the sum of p
// over the lane's own columns.
template <int Fragments>
struct Statistics {
    float maximum[Fragments][2], sum[Fragments][2];
    __device__ Statistics() {
        // finite, because a query may attend to none of the first keys
        UNROLLED for (int g = 0; g < Fragments; ++g)
            UNROLLED for (int half = 0; half < 2; ++half) maximum[g][half] = -FLT_MAX, sum[g][half] = 0.0f;
    }
};

// Replaces scores by weights p relative to the new maximum, and rescales sums and results to it. Scores of -infinity
// become exactly 0.
template <int Fragments, int Keys8, int Channels8>
__device__ void online_softmax(Sums<Fragments, Keys8>& scores, Statistics<Fragments>& statistics, Sums<Fragments,
                               Channels8>& results, float exponent_scale) {
    UNROLLED for (int g = 0; g < Fragments; ++g)
        UNROLLED for (int half = 0; half < 2; ++half) {
            float largest = -INFINITY;
            UNROLLED for (auto& fragment : scores[g])
                largest = fmaxf(largest, fmaxf(fragment[2 * half], fragment[2 * half + 1]));
            float &maximum = statistics.maximum[g][half], &sum = statistics.sum[g][half];
            const float before = maximum;
            maximum = fmaxf(before, warp_max<4>(largest) * exponent_scale);
            const float correction = fast_exp2(before - maximum);
            sum *= correction;
            UNROLLED for (auto& fragment : scores[g])
                UNROLLED for (int i = 2 * half; i < 2 * half + 2; ++i) {
                    fragment[i] = fast_exp2(fmaf(fragment[i], exponent_scale, -maximum));
                    sum += fragment[i];
                }
            UNROLLED for (auto& fragment : results[g])
                UNROLLED for (int i = 2 * half; i < 2 * half + 2; ++i) fragment[i] *= correction;
        }
}

// Shared memory: queries, then two buffers of keys and values.
template <int HeadSize, bool Documents>
__global__ void __launch_bounds__(kFlashThreads, 2) flash_forward_kernel(AttentionForward<bf16> op, int tiles,
                                                                    float exponent_scale) {
    constexpr Tile kTile = tiles_for(HeadSize).forward;
    constexpr int kFragments = kTile.fragments, kKeys = kTile.columns;
    SIMT_DYN_SHARED(bf16, shared);

    const ThreadPosition thread;
    const Task task(tiles, op.shape);
    const int seq_len = op.shape.seq_len;
    const auto rows = [&](int part) { return task.rows<HeadSize>(op.qkv, op.shape, 3, part); };
    const Queries queries(task, kTile, tiles, seq_len, thread.warp);
    const DoubleBuffer<HeadSize, kKeys> buffers{shared + kTile.rows() * kPitch<HeadSize>, rows(1), rows(2), seq_len};
    bf16* const own_queries = shared + queries.own_row * kPitch<HeadSize>;
    const FirstKeys<Documents> starts(op, task);
    const int block_start = starts[queries.block] / kKeys * kKeys;

    AsyncCopies copies;
    copy_tile<HeadSize, kTile.rows()>(copies, shared, rows(0), queries.block, seq_len);
    buffers.fetch(copies, block_start);
    copies.wait();
    __syncthreads();

    const Operand<HeadSize, kFragments, kTile.keeps_rows> own(own_queries, thread);
    Statistics<kFragments> statistics;
    Sums<kFragments, HeadSize / 8> out = {};
    const auto step = [&](int first_key) {
        Sums<kFragments, kKeys / 8> scores;
        multiply(scores, own, buffers.first(first_key), thread);
        // Causal mask. Keys from seq_len on lie beyond every query of the sequence: the same test masks them.
        if (first_key + kKeys - 1 > queries.first)
            for_each(scores, thread, [&](int row, int column, float& score) {
                if (first_key + column > queries.first + row) score = -INFINITY;
            });
        mask_documents(scores, thread, starts, queries.first, first_key);
        online_softmax(scores, statistics, out, exponent_scale);
        accumulate<HeadSize>(out, scores, buffers.second(first_key), thread);
    };
    for (int first_key = block_start; first_key < queries.end_key; first_key += kKeys) {
        if (first_key + kKeys < queries.end_key) buffers.fetch(copies, first_key + kKeys);
        // skip tiles that are masked for this whole warp
        if (first_key <= queries.last && (!Documents || starts[queries.first] < first_key + kKeys)) step(first_key);
        copies.wait();
        __syncthreads();
    }

    float scale[kFragments][2];
    UNROLLED for (int g = 0; g < kFragments; ++g)
        UNROLLED for (int half = 0; half < 2; ++half) {
            const float sum = warp_sum<4>(statistics.sum[g][half]);
            const int query = queries.first + g * 16 + half * 8 + thread.group;
            scale[g][half] = 1.0f / sum;
            if (thread.pair == 0 && query < seq_len)
                op.logsumexp[task.statistics + query] = (statistics.maximum[g][half] + log2f(sum)) *
                                                        std::numbers::ln2_v<float>;
        }
    const Rows<bf16> out_rows = task.rows<HeadSize>(op.out, op.shape, 1, 0);
    store_rows<HeadSize>(out_rows, queries.first, seq_len, out, scale, own_queries, thread);
}

}  // namespace

void flash_attention_forward(const AttentionForward<bf16>& op, StreamRef stream) {
    check_attention(op);
    with_documents(op, [&]<int HeadSize, bool Documents>() {
        constexpr Tile kTile = tiles_for(HeadSize).forward;
        const unsigned tiles = tiles_of(op.shape.seq_len, kTile);
        const float exponent_scale = float(std::numbers::log2e / std::sqrt(double(HeadSize)));
        simt::launch<flash_forward_kernel<HeadSize, Documents>>(
            {.grid = attention_blocks(tiles, op.shape.sequences()), .block = kFlashThreads,
             .shared_bytes = tile_bytes<HeadSize>(kTile, 1, 2), .stream = stream}, op, int(tiles), exponent_scale);
    });
}

}  // namespace kernels
