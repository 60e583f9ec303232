// flash.cuh - what the kernels of flash.h share: sizes of tiles, how tiles come to shared memory, and the products of a
// warp
//
// Roles     A block owns a tile of rows (queries, or keys for dk and dv) of one sequence, that is one head of one batch
//           element, and walks over tiles of columns (keys, or queries). Each of its four warps owns 16 or 32 of the
//           rows and never needs another warp's results: scores leave the tensor cores in the registers where the next
//           product wants them. Only tiles of columns are shared.
// Pipeline  Two stages of columns. A step starts the copies of the next tile, computes with its own, waits for the
//           copies and meets the other warps at its only barrier: after that the next tile is there for all, and this
//           one is free.
// Layout    Rows of a tile are head_size + 8 elements apart, an odd number of 16 bytes for every head size, so that
//           neither the copies nor ldmatrix nor the fragments that pass through shared memory on their way out meet
//           bank conflicts.
#pragma once
#include <algorithm>

#include "kernels/attention/flash.h"
#include "kernels/device/error.h"
#include "kernels/pack.cuh"
#include "kernels/ptx.cuh"
#include "kernels/reduce.cuh"

namespace kernels::flash {

inline constexpr int kWarpThreads = 32, kWarps = 4, kThreads = kWarps * kWarpThreads;
inline constexpr int kPackSize = kGpuPackBytes / sizeof(bf16);

// Of one kernel: fragments of 16 rows that a warp owns, columns of a step, and whether the warp keeps its rows in
// registers instead of reading them again each step.
struct Tile {
    int fragments, columns;
    bool keeps_rows;
    constexpr int rows() const { return kWarps * 16 * fragments; }
};

// Two fragments let each ldmatrix.x4 of columns feed four products instead of two, which shared memory's bandwidth
// calls for: the load takes an SM of sm_80 four cycles, a product two. Two things set the limit. Registers, 255 a
// thread: 4 * fragments of them for every eight columns (twice that in the backward pass, which holds p and ds) and for
// every eight channels of a result. Shared memory: below 81 KiB a block, an A100's 164 KiB hold two blocks, whose eight
// warps hide each other's waits, as they do on an H100. So columns are 32 where 64 would break either limit, and one
// fragment where two would. ptxas takes 178 to 254 registers without spills, so that registers too admit two blocks of
// 128 threads. The rest is reasoning, not measured on a GPU yet.
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

// The tile of rows, and the sequence, of this block. Blocks of one sequence are neighbours, so that they find its
// columns in the second-level cache.
struct Task {
    int tile, batch, head;
    std::size_t statistics;  // where the sequence starts in logsumexp and delta

    __device__ Task(int tiles, int heads, int seq_len) : tile(blockIdx.x % tiles) {
        const int sequence = blockIdx.x / tiles;
        batch = sequence / heads, head = sequence % heads;
        statistics = std::size_t(sequence) * seq_len;
    }

    // `parts`, `part`: 3 and 0, 1, 2 for queries, keys, values in qkv; 1 and 0 in out.
    template <int HeadSize, class T>
    __device__ Rows<T> rows(std::span<T> tensor, int seq_len, int heads, int parts, int part) const {
        const int stride = parts * heads * HeadSize;
        return {tensor.data() + std::size_t(batch) * seq_len * stride + (part * heads + head) * HeadSize, stride};
    }
};

// The queries of a block whose rows are queries, and of one of its warps. The tile that sees most keys comes first.
struct Queries {
    int block, own_row, first, last, end_key;  // last: -1 where the whole warp lies beyond the sequence
    __device__ Queries(const Task& task, Tile tile, int tiles, int seq_len, int warp)
        : block((tiles - 1 - task.tile) * tile.rows()),
          own_row(warp * 16 * tile.fragments),
          first(block + own_row),
          last(first < seq_len ? first + 16 * tile.fragments - 1 : -1),
          end_key(std::min(block + tile.rows(), seq_len)) {}
};

// This thread's place in its warp: fragments give it rows `group` and group + 8 of every sixteen, and columns `pair`
// and pair + 1 of every eight.
struct Place {
    int lane, warp, group, pair;
    __device__ Place()
        : lane(threadIdx.x % kWarpThreads),
          warp(threadIdx.x / kWarpThreads),
          group(lane / 4),
          pair(lane % 4 * 2) {}
};

// Starts the copies of `Count` positions from `first` on, by the whole block; positions from `end` on become zero.
// Eight lanes share a row, so that a thread's addresses follow from one: at head sizes 80 and 96 some lanes idle now
// and then, which costs less than a division for each copy.
template <int HeadSize, int Count>
__device__ void copy_tile(AsyncCopies& copies, bf16* tile, Rows<const bf16> from, int first, int end) {
    constexpr int kLanes = 8, kSweep = kThreads / kLanes;
    static_assert(Count % kSweep == 0);
    const int row = threadIdx.x / kLanes, channel = threadIdx.x % kLanes * kPackSize;
    const bf16* const source = from[first + row] + channel;
    bf16* const target = tile + row * kPitch<HeadSize> + channel;
    UNROLLED for (int i = 0; i < Count; i += kSweep)
        UNROLLED for (int c = 0; c < HeadSize; c += kLanes * kPackSize)
            if (channel + c < HeadSize)
                copies.copy_or_zero(target + i * kPitch<HeadSize> + c, source + std::ptrdiff_t(i) * from.stride + c,
                                    first + row + i < end);
}

// The tiles of columns, two stages of them: keys and values, or queries and dout.
template <int HeadSize, int Columns>
struct Stages {
    static constexpr int kSize = Columns * kPitch<HeadSize>;
    bf16* memory;
    Rows<const bf16> first_rows, second_rows;
    int end;  // of the sequence

    __device__ static int stage(int position) { return position / Columns % 2; }
    __device__ bf16* first(int position) const { return memory + stage(position) * (2 * kSize); }
    __device__ bf16* second(int position) const { return first(position) + kSize; }
    // Starts the copies of the tiles that begin with `position`.
    __device__ void fetch(AsyncCopies& copies, int position) const {
        copy_tile<HeadSize, Columns>(copies, first(position), first_rows, position, end);
        copy_tile<HeadSize, Columns>(copies, second(position), second_rows, position, end);
        copies.commit_group();
    }
};

// Sums of products: of the warp's rows by columns (scores) or by channels (results). [16 rows][8 columns or
// channels][as mma_m16n8k16 leaves them].
template <int Fragments, int Eights> using Sums = float[Fragments][Eights][4];

// Calls visit(row, column, element) for each element of this lane.
template <int Fragments, int Eights, class Visit>
__device__ void for_each(Sums<Fragments, Eights>& sums, Place place, Visit&& visit) {
    UNROLLED for (int g = 0; g < Fragments; ++g)
        UNROLLED for (int c = 0; c < Eights; ++c)
            UNROLLED for (int i = 0; i < 4; ++i)
                visit(g * 16 + i / 2 * 8 + place.group, c * 8 + i % 2 + place.pair, sums[g][c][i]);
}

// The warp's rows as the left operand of products over channels.
template <int HeadSize, int Fragments, bool InRegisters>
class Operand {
public:
    // The rows must have arrived.
    __device__ Operand(const bf16* rows, Place place)
        : address_(rows + place.lane % 16 * kPitch<HeadSize> + place.lane / 16 * 8) {
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
                         const bf16* columns, Place place) {
    const bf16* const address = columns + (place.lane % 8 + place.lane / 16 * 8) * kPitch<HeadSize> +
                                place.lane / 8 % 2 * 8;
    UNROLLED for (auto& row : products)
        UNROLLED for (auto& sums : row)
            UNROLLED for (float& sum : sums) sum = 0.0f;
    UNROLLED for (int k = 0; k < HeadSize / 16; ++k) {
        FragmentA left[Fragments];
        rows.load(left, k);
        UNROLLED for (int c = 0; c < Eights / 2; ++c) {
            FragmentB right[2];
            ldmatrix(right, address + c * 16 * kPitch<HeadSize> + k * 16);
            UNROLLED for (int g = 0; g < Fragments; ++g)
                UNROLLED for (int i = 0; i < 2; ++i) mma_m16n8k16(products[g][2 * c + i], left[g], right[i]);
        }
    }
}

// results += weights columns, with weights rounded to bf16
template <int HeadSize, int Fragments, int Eights>
__device__ void accumulate(Sums<Fragments, HeadSize / 8>& results, const Sums<Fragments, Eights>& weights,
                           const bf16* columns, Place place) {
    const bf16* const address = columns + place.lane % 16 * kPitch<HeadSize> + place.lane / 16 * 8;
    UNROLLED for (int k = 0; k < Eights / 2; ++k) {
        FragmentA left[Fragments];
        UNROLLED for (int g = 0; g < Fragments; ++g) {
            const float *near = weights[g][2 * k], *far = weights[g][2 * k + 1];
            left[g] = {bf16_pair(near[0], near[1]), bf16_pair(near[2], near[3]), bf16_pair(far[0], far[1]),
                       bf16_pair(far[2], far[3])};
        }
        UNROLLED for (int c = 0; c < HeadSize / 16; ++c) {
            FragmentB right[2];
            ldmatrix_trans(right, address + k * 16 * kPitch<HeadSize> + c * 16);
            UNROLLED for (int g = 0; g < Fragments; ++g)
                UNROLLED for (int i = 0; i < 2; ++i) mma_m16n8k16(results[g][2 * c + i], left[g], right[i]);
        }
    }
}

// Stores the warp's rows from position `first` on, below `end`, each times its scale [16 rows][near, far], 16 bytes a
// lane: through `own`, rows of shared memory that no other warp uses and that the warp itself has not read since the
// last barrier.
template <int HeadSize, int Fragments>
__device__ void store_rows(Rows<bf16> to, int first, int end, const Sums<Fragments, HeadSize / 8>& results,
                           const float (&scale)[Fragments][2], bf16* own, Place place) {
    UNROLLED for (int g = 0; g < Fragments; ++g)
        UNROLLED for (int half = 0; half < 2; ++half)
            UNROLLED for (int c = 0; c < HeadSize / 8; ++c) {
                const float* const x = results[g][c] + 2 * half;
                const auto pair = std::bit_cast<Pack<bf16, 4>>(bf16_pair(x[0] * scale[g][half], x[1] * scale[g][half]));
                store(own + (g * 16 + half * 8 + place.group) * kPitch<HeadSize> + c * 8 + place.pair, pair);
            }
    __syncwarp();
    constexpr int kPacks = HeadSize / kPackSize;
    for (int i = place.lane; i < Fragments * 16 * kPacks; i += kWarpThreads) {
        const int row = i / kPacks, channel = i % kPacks * kPackSize;
        if (first + row < end)
            store(to[first + row] + channel, load<kGpuPackBytes>(own + row * kPitch<HeadSize> + channel));
    }
}

// Bytes of shared memory: `row_tiles` of the block's own and `column_tiles` in two stages.
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

inline unsigned tiles_of(int seq_len, Tile tile) { return unsigned((seq_len + tile.rows() - 1) / tile.rows()); }

}  // namespace kernels::flash
