// flash.cuh - shared by the kernels of flash.h: tile sizes, copies of tiles to shared memory, and the matrix products
// of a warp
//
// Roles     A block owns a tile of rows (queries, or keys for dk and dv) of one "sequence", here: one head of one batch
//           element, and iterates over tiles of columns (keys, or queries). Each of its four warps owns 16 or 32 of the
//           rows and needs no results of other warps: the tensor cores leave the scores in the registers that the next
//           product uses as its operand. Only tiles of columns are shared.
// Pipeline  Two buffers of column tiles. A step starts the copies of the next tile, computes with this one, waits
//           for the copies, and ends with its only barrier: after that the next tile is visible to all warps, and the
//           current one can be overwritten.
// Layout    Rows of a tile are head_size + 8 elements apart, an odd multiple of 16 bytes for every head size, so that
//           the copies, ldmatrix, and the results that are stored through shared memory have no bank conflicts.
#pragma once
#include <algorithm>

#include "kernels/attention/flash.h"
#include "kernels/base/error.h"
#include "kernels/pack.cuh"
#include "kernels/ptx.cuh"
#include "kernels/reduce.cuh"

namespace kernels::flash {

inline constexpr int kWarps = 4, kFlashThreads = kWarps * kWarp;
inline constexpr int kPackSize = kGpuPackBytes / sizeof(bf16);

// The tile sizes of one kernel: fragments of 16 rows per warp, columns per step, and whether a warp keeps its rows in
// registers instead of reading them again in each step.
struct Tile {
    int fragments, columns;
    bool keeps_rows;
    constexpr int rows() const { return kWarps * 16 * fragments; }
};

// With two fragments each ldmatrix.x4 of columns feeds four mma instructions instead of two. Shared-memory bandwidth
// requires this: on sm_80 such a load takes four cycles of an SM, an mma two. Two limits apply:
//   registers      255 per thread: 4 * fragments for every eight columns (twice that in the backward pass, which holds
//                  p and ds), and as many for every eight channels of a result
//   shared memory  below 81 KiB per block two blocks fit into an A100's 164 KiB, and as many into an H100's, so that
//                  eight warps hide each other's latency
// So a tile has 32 columns if 64 would exceed either limit, and one fragment if two would. ptxas uses 178 to 255
// registers without spills, so registers also allow two blocks of 128 threads. The numbers other than ptxas' are
// derived, not measured on a GPU yet.
struct Tiles {
    int head_size;
    Tile forward, dq, dkv;
};
inline constexpr Tiles kTiles[] = {
    //    forward         dq              dk and dv          KiB of shared memory
    {64, {2, 64, true}, {2, 32, false}, {2, 32, false}},     // 54, 54, 54.5
    {80, {2, 64, false}, {2, 32, false}, {1, 64, false}},    // 66, 66, 67
    {96, {2, 64, false}, {2, 32, false}, {1, 64, false}},    // 78, 78, 79
    {128, {2, 32, false}, {1, 32, false}, {1, 32, false}},   // 68, 68, 68.5
};
constexpr Tiles tiles_for(int head_size) {
    for (const Tiles& tiles : kTiles)
        if (tiles.head_size == head_size) return tiles;
    return {};
}

template <int HeadSize> inline constexpr int kPitch = HeadSize + kPackSize;

// The rows of one sequence's queries, keys, ... within a packed tensor.
template <class T>
struct Rows {
    T* first;
    int stride;
    __device__ T* operator[](int position) const { return first + std::ptrdiff_t(position) * stride; }
};

// The row tile and the sequence of this block. Blocks of one sequence are neighbours, so that its columns stay in the
// L2 cache.
struct Task {
    int tile, batch, head;
    std::size_t statistics;  // offset of the sequence in logsumexp and delta

    __device__ Task(int tiles, const AttentionShape& shape) : tile(blockIdx.x % tiles) {
        const int sequence = blockIdx.x / tiles;
        batch = sequence / shape.heads, head = sequence % shape.heads;
        statistics = std::size_t(sequence) * shape.seq_len;
    }

    // (parts, part): (3, 0), (3, 1), (3, 2) for queries, keys, values in qkv; (1, 0) for out.
    template <int HeadSize, class T>
    __device__ Rows<T> rows(std::span<T> tensor, const AttentionShape& shape, int parts, int part) const {
        const int stride = parts * shape.heads * HeadSize;
        return {tensor.data() + std::size_t(batch) * shape.seq_len * stride + (part * shape.heads + head) * HeadSize,
                stride};
    }
};

// The first key that each query attends to. Without documents this is no code. In a warp's or block's range of queries
// the first one attends to the least first key and the last one to the largest.
template <bool Documents>
struct FirstKeys {
    const int* starts = nullptr;  // of the batch element
    int seq_len = 0;
    template <class Op>
    __device__ FirstKeys(const Op& op, const Task& task) {
        if constexpr (Documents)
            starts = &op.starts[std::size_t(task.batch) * op.shape.seq_len], seq_len = op.shape.seq_len;
    }
    // Positions from seq_len on count as the last one.
    __device__ int operator[](int query) const {
        if constexpr (Documents) return starts[std::min(query, seq_len - 1)];
        else return 0;
    }
};

// For the kernels whose rows are queries (forward, dq): the query range of a block and of one of its warps. blockIdx 0
// gets the last tile, which attends to the most keys, so that the longest blocks start first.
struct Queries {
    int block, own_row, first, last, end_key;  // last: -1 if all rows of the warp lie beyond the sequence
    __device__ Queries(const Task& task, Tile tile, int tiles, int seq_len, int warp)
        : block((tiles - 1 - task.tile) * tile.rows()),
          own_row(warp * 16 * tile.fragments),
          first(block + own_row),
          last(first < seq_len ? first + 16 * tile.fragments - 1 : -1),
          end_key(std::min(block + tile.rows(), seq_len)) {}
};

// This thread's position in its block and in the mma fragments: it holds rows `group` and group + 8 of every 16, and
// columns `pair` and pair + 1 of every 8.
struct ThreadPosition {
    int lane, warp, group, pair;
    __device__ ThreadPosition()
        : lane(threadIdx.x % kWarp),
          warp(threadIdx.x / kWarp),
          group(lane / 4),
          pair(lane % 4 * 2) {}
};

// The whole block starts the async copies (cp.async) of positions [first, first + Count); positions >= end become zero.
// Eight lanes share a row, so that a thread derives all its addresses from one: at head sizes 80 and 96 some lanes are
// sometimes idle, which costs less than a division for each copy.
template <int HeadSize, int Count>
__device__ void copy_tile(AsyncCopies& copies, bf16* tile, Rows<const bf16> from, int first, int end) {
    constexpr int kLanes = 8, kSweep = kFlashThreads / kLanes;
    static_assert(Count % kSweep == 0);
    const int row = threadIdx.x / kLanes, channel = threadIdx.x % kLanes * kPackSize;
    const bf16* const source = from[first + row] + channel;
    bf16* const target = tile + row * kPitch<HeadSize> + channel;
    UNROLLED for (int i = 0; i < Count; i += kSweep)
        UNROLLED for (int c = 0; c < HeadSize; c += kLanes * kPackSize)
            if (channel + c < HeadSize)
                copies.copy(target + i * kPitch<HeadSize> + c, source + std::ptrdiff_t(i) * from.stride + c,
                                    first + row + i < end);
}

// Two buffers of column tiles, each with two tensors: keys and values, or queries and dout.
template <int HeadSize, int Columns>
struct DoubleBuffer {
    static constexpr int kSize = Columns * kPitch<HeadSize>;
    bf16* memory;
    Rows<const bf16> first_rows, second_rows;
    int end;  // of the sequence

    __device__ static int index(int position) { return position / Columns % 2; }
    __device__ bf16* first(int position) const { return memory + index(position) * (2 * kSize); }
    __device__ bf16* second(int position) const { return first(position) + kSize; }
    // Starts the copies of both tiles that begin at `position`.
    __device__ void fetch(AsyncCopies& copies, int position) const {
        copy_tile<HeadSize, Columns>(copies, first(position), first_rows, position, end);
        copy_tile<HeadSize, Columns>(copies, second(position), second_rows, position, end);
    }
};

// Accumulators of the warp's rows by columns (scores) or by channels (results):
// [fragment of 16 rows][8 columns or channels][d of mma_m16n8k16].
template <int Fragments, int Eights> using Sums = float[Fragments][Eights][4];

// Calls visit(row, column, element) for each element of this lane.
template <int Fragments, int Eights, class Visit>
__device__ void for_each(Sums<Fragments, Eights>& sums, ThreadPosition thread, Visit&& visit) {
    UNROLLED for (int g = 0; g < Fragments; ++g)
        UNROLLED for (int c = 0; c < Eights; ++c)
            UNROLLED for (int i = 0; i < 4; ++i)
                visit(g * 16 + i / 2 * 8 + thread.group, c * 8 + i % 2 + thread.pair, sums[g][c][i]);
}

// Where queries (rows) do not attend to keys (columns) of earlier documents, scores become -infinity, and p exactly 0.
template <int Fragments, int Eights, bool Documents>
__device__ void mask_documents(Sums<Fragments, Eights>& scores, ThreadPosition thread,
                               const FirstKeys<Documents>& starts, int first_query, int first_key) {
    if (!Documents || first_key >= starts[first_query + 16 * Fragments - 1]) return;
    UNROLLED for (int g = 0; g < Fragments; ++g)
        UNROLLED for (int half = 0; half < 2; ++half) {
            const int start = starts[first_query + g * 16 + half * 8 + thread.group] - first_key - thread.pair;
            UNROLLED for (int c = 0; c < Eights; ++c)
                UNROLLED for (int i = 0; i < 2; ++i)
                    if (c * 8 + i < start) scores[g][c][half * 2 + i] = -INFINITY;
        }
}

// The warp's rows as the left operand of products that sum over channels.
template <int HeadSize, int Fragments, bool InRegisters>
class Operand {
public:
    // The copies of the rows must be complete.
    __device__ Operand(const bf16* rows, ThreadPosition thread)
        : address_(rows + thread.lane % 16 * kPitch<HeadSize> + thread.lane / 16 * 8) {
        if constexpr (InRegisters)
            UNROLLED for (int k = 0; k < HeadSize / 16; ++k)
                UNROLLED for (int g = 0; g < Fragments; ++g)
                    ldmatrix(fragments_[k][g].reg, address_ + g * 16 * kPitch<HeadSize> + k * 16);
    }
    // Channels 16 k to 16 k + 15.
    __device__ void load(FragmentA (&rows)[Fragments], int k) const {
        UNROLLED for (int g = 0; g < Fragments; ++g) {
            if constexpr (InRegisters) rows[g] = fragments_[k][g];
            else ldmatrix(rows[g].reg, address_ + g * 16 * kPitch<HeadSize> + k * 16);
        }
    }

private:
    const bf16* address_;
    FragmentA fragments_[InRegisters ? HeadSize / 16 : 1][Fragments];
};

// products = rows . columns
template <int HeadSize, int Fragments, bool InRegisters, int Eights>
__device__ void multiply(Sums<Fragments, Eights>& products, const Operand<HeadSize, Fragments, InRegisters>& rows,
                         const bf16* columns, ThreadPosition thread) {
    const bf16* const address = columns + (thread.lane % 8 + thread.lane / 16 * 8) * kPitch<HeadSize> +
                                thread.lane / 8 % 2 * 8;
    UNROLLED for (auto& row : products)
        UNROLLED for (auto& sums : row)
            UNROLLED for (float& sum : sums) sum = 0.0f;
    UNROLLED for (int k = 0; k < HeadSize / 16; ++k) {
        FragmentA left[Fragments];
        rows.load(left, k);
        UNROLLED for (int c = 0; c < Eights / 2; ++c) {
            FragmentBPair right;
            ldmatrix(right.reg, address + c * 16 * kPitch<HeadSize> + k * 16);
            UNROLLED for (int g = 0; g < Fragments; ++g)
                UNROLLED for (int i = 0; i < 2; ++i) mma_m16n8k16(products[g][2 * c + i], left[g], right[i]);
        }
    }
}

// results += weights columns, with weights rounded to bf16
template <int HeadSize, int Fragments, int Eights>
__device__ void accumulate(Sums<Fragments, HeadSize / 8>& results, const Sums<Fragments, Eights>& weights,
                           const bf16* columns, ThreadPosition thread) {
    const bf16* const address = columns + thread.lane % 16 * kPitch<HeadSize> + thread.lane / 16 * 8;
    UNROLLED for (int k = 0; k < Eights / 2; ++k) {
        FragmentA left[Fragments];
        UNROLLED for (int g = 0; g < Fragments; ++g) {
            const float *near = weights[g][2 * k], *far = weights[g][2 * k + 1];
            left[g] = {bf16_pair(near[0], near[1]), bf16_pair(near[2], near[3]), bf16_pair(far[0], far[1]),
                       bf16_pair(far[2], far[3])};
        }
        UNROLLED for (int c = 0; c < HeadSize / 16; ++c) {
            FragmentBPair right;
            ldmatrix_trans(right.reg, address + k * 16 * kPitch<HeadSize> + c * 16);
            UNROLLED for (int g = 0; g < Fragments; ++g)
                UNROLLED for (int i = 0; i < 2; ++i) mma_m16n8k16(results[g][2 * c + i], left[g], right[i]);
        }
    }
}

// Stores the warp's rows, positions `first` up to `end`, each multiplied by its scale [fragment][group, group + 8], 16
// bytes per lane. Passes them through `own`, rows of shared memory that no other warp uses and that this warp has not
// read since the last barrier.
template <int HeadSize, int Fragments>
__device__ void store_rows(Rows<bf16> to, int first, int end, const Sums<Fragments, HeadSize / 8>& results,
                           const float (&scale)[Fragments][2], bf16* own, ThreadPosition thread) {
    UNROLLED for (int g = 0; g < Fragments; ++g)
        UNROLLED for (int half = 0; half < 2; ++half)
            UNROLLED for (int c = 0; c < HeadSize / 8; ++c) {
                const float* const x = results[g][c] + 2 * half;
                const auto pair = std::bit_cast<Pack<bf16, 4>>(bf16_pair(x[0] * scale[g][half], x[1] * scale[g][half]));
                store(own + (g * 16 + half * 8 + thread.group) * kPitch<HeadSize> + c * 8 + thread.pair, pair);
            }
    __syncwarp();
    constexpr int kPacks = HeadSize / kPackSize;
    for (int i = thread.lane; i < Fragments * 16 * kPacks; i += kWarp) {
        const int row = i / kPacks, channel = i % kPacks * kPackSize;
        if (first + row < end)
            store(to[first + row] + channel, load<kGpuPackBytes>(own + row * kPitch<HeadSize> + channel));
    }
}

// Bytes of shared memory: `row_tiles` row tiles, and `column_tiles` column tiles, each in two buffers.
template <int HeadSize>
constexpr std::size_t tile_bytes(Tile tile, int row_tiles, int column_tiles) {
    return std::size_t(row_tiles * tile.rows() + 2 * column_tiles * tile.columns) * kPitch<HeadSize> * sizeof(bf16);
}

// Calls launch.template operator()<HeadSize>().
template <class Launch>
void with_head_size(int head_size, Launch&& launch) {
    switch (head_size) {
        case 64: return launch.template operator()<64>();
        case 80: return launch.template operator()<80>();
        case 96: return launch.template operator()<96>();
        case 128: return launch.template operator()<128>();
        default: fail("flash attention's head_size", head_size, "64, 80, 96 or 128", "use --attention plain");
    }
}

// Calls launch.template operator()<HeadSize, Documents>().
template <class Op, class Launch>
void with_documents(const Op& op, Launch&& launch) {
    with_head_size(op.shape.head_size, [&]<int HeadSize>() {
        if (op.starts.empty()) launch.template operator()<HeadSize, false>();
        else launch.template operator()<HeadSize, true>();
    });
}

inline unsigned tiles_of(int seq_len, Tile tile) { return unsigned(ceil_div(seq_len, tile.rows())); }

}  // namespace kernels::flash
