// decode.cu - decode.h: attention of one query row to the cache, split over the keys
//
// Geometry  A row is one (sequence, new position, head): a query vector. A block processes one row and one split of its
//           keys; a team, 8 to 32 lanes, processes one key at a time, each lane one or two packs of it. On a GPU a
//           team loads eight keys and eight values before it uses the first: 4 KiB per warp are in flight. On a CPU a
//           team is one thread that processes 64 keys at a time.
// Merging   Teams of a warp merge by shuffles, warps through shared memory, blocks through scratch and a second kernel.
//           Partial results: the maximum score, the sum of exp(score - maximum), and that sum weighted by the values.
#include "kernels/attention/decode.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <string>

#include "kernels/base/error.h"
#include "kernels/device/limits.h"
#include "kernels/math.cuh"
#include "kernels/reduce.cuh"
#include "kernels/widen.cuh"

namespace kernels {
namespace {

constexpr int kMaxHeadSize = 256;
constexpr int kStatistics = 2;  // the maximum, and the sum

// Lanes: lanes per team. LanePacks: maximum packs per lane; Exact: every lane has exactly LanePacks. Keys: keys that a
// team processes at a time.
template <class T, int Lanes_, int LanePacks, int PackBytes, bool Exact_, int Keys_, int Warps_>
struct DecodeGeometry {
    static constexpr int lanes = Lanes_, lane_packs = LanePacks;
    static constexpr int pack_bytes = PackBytes, pack_size = PackBytes / sizeof(T);
    static constexpr bool exact = Exact_;
    static constexpr int keys = Keys_, warps = Warps_, threads = Lanes_ == 1 ? 1 : kWarp * Warps_;
    static constexpr int teams = threads / Lanes_;
};

// How the keys of a row are divided among blocks.
struct KeySplits {
    int count, keys;  // splits per row; keys per split (the last one may be shorter)
};

// A lane's packs of the keys that its team processes at a time: registers on a GPU, references to memory on a CPU.
template <class T, class G, bool Registers = simt::gpu_geometry>
struct KeyPacks {
    Pack<unsigned, G::pack_bytes> pack[G::keys][G::lane_packs] = {};
    template <class Has>
    __device__ KeyPacks(const T* from, std::size_t key_stride, int keys, const Has& has, int lane) {
        UNROLLED for (int key = 0; key < G::keys; ++key)
            UNROLLED for (int p = 0; p < G::lane_packs; ++p)
                if (key * G::teams < keys && has(p))
                    pack[key][p] = std::bit_cast<Pack<unsigned, G::pack_bytes>>(
                        load<G::pack_bytes>(from + key * key_stride + (lane + p * G::lanes) * G::pack_size));
    }
    __device__ Pack<T, G::pack_bytes> at(int key, int p) const {
        return std::bit_cast<Pack<T, G::pack_bytes>>(pack[key][p]);
    }
};
template <class T, class G>
struct KeyPacks<T, G, false> {
    const T* from;
    std::size_t key_stride;
    template <class Has> KeyPacks(const T* rows, std::size_t stride, int, const Has&, int)
        : from(rows),
          key_stride(stride) {}
    const Pack<T, G::pack_bytes>& at(int key, int p) const {
        return load<G::pack_bytes>(from + key * key_stride + p * G::pack_size);
    }
};

// A team's running statistics and result of its row. The maximum starts at a finite number, so that the code never
// subtracts infinities.
template <class G>
struct DecodeState {
    float maximum = -FLT_MAX, sum = 0.0f;
    float out[G::lane_packs][G::pack_size] = {};
    __device__ void scale_to(float new_maximum, int lane_packs) {
        const float correction = fast_exp(maximum - new_maximum);
        maximum = new_maximum;
        sum *= correction;
        UNROLLED for (int p = 0; p < lane_packs; ++p)
            UNROLLED for (int k = 0; k < G::pack_size; ++k) out[p][k] *= correction;
    }
};

template <class G>
__device__ void merge_teams(DecodeState<G>& state) {
    UNROLLED for (int distance = G::lanes; distance < kWarp; distance *= 2) {
        state.scale_to(fmaxf(state.maximum, __shfl_xor_sync(kAllLanes, state.maximum, distance)), G::lane_packs);
        state.sum += __shfl_xor_sync(kAllLanes, state.sum, distance);
        UNROLLED for (int p = 0; p < G::lane_packs; ++p)
            UNROLLED for (int k = 0; k < G::pack_size; ++k)
                state.out[p][k] += __shfl_xor_sync(kAllLanes, state.out[p][k], distance);
    }
}

// The destination of a block's result: the row of `out`, or scratch if the row is split over several blocks.
template <class T>
struct DecodeResult {
    T* row;
    float *sums, *statistics;
    bool whole;
    __device__ void store(int channel, float sum, float total) const {
        if (whole) row[channel] = round_to<T>(sum / total);
        else sums[channel] = sum;
    }
};

// With four blocks per multiprocessor there are enough registers for all loads.
template <class T, class G>
__global__ void __launch_bounds__(G::threads, 4)
decode_attention_kernel(DecodeAttention<T> op, KeySplits splits, float scale) {
    // Rows are numbered in the order of `out`.
    const int row = int(blockIdx.x) / splits.count, split = int(blockIdx.x) % splits.count;
    const int head = row % op.heads, batch = row / op.heads / op.count, position = row / op.heads % op.count;
    const int first_key = split * splits.keys, end_key = std::min(first_key + splits.keys, op.first + position + 1);
    const int team = threadIdx.x / G::lanes, lane = threadIdx.x % G::lanes;
    const int packs = op.head_size / G::pack_size;  // of a key
    const int lane_packs = G::lanes == 1 && !G::exact ? packs : G::lane_packs;
    const auto has = [=](int p) { return G::exact || lane + p * G::lanes < packs; };
    const std::size_t cache = (std::size_t(batch) * op.heads + head) * op.capacity * op.head_size;

    float query[G::lane_packs][G::pack_size] = {};
    const T* queries = &op.qkv[((std::size_t(batch) * op.count + position) * 3 * op.heads + head) * op.head_size];
    UNROLLED for (int p = 0; p < lane_packs; ++p) {
        if (!has(p)) continue;
        const auto& pack = load<G::pack_bytes>(queries + (lane + p * G::lanes) * G::pack_size);
        UNROLLED for (int k = 0; k < G::pack_size; ++k) query[p][k] = to_float(pack[k]) * scale;
    }

    DecodeState<G> state;
    const std::size_t key_stride = std::size_t(G::teams) * op.head_size;
    for (int base = first_key; base < end_key; base += G::teams * G::keys) {
        const int left = end_key - base - team;  // this team processes keys base + team, base + team + teams, ...
        const T* keys_at = op.keys.data() + cache + std::size_t(base + team) * op.head_size;
        const T* values_at = op.values.data() + cache + std::size_t(base + team) * op.head_size;
        const KeyPacks<T, G> keys(keys_at, key_stride, left, has, lane);
        const KeyPacks<T, G> values(values_at, key_stride, left, has, lane);
        // On a GPU all lanes of a warp process all keys, because the sums over lanes are warp collectives.
        const int count = G::lanes > 1 || left > G::keys ? G::keys : left;
        float weight[G::keys], largest = state.maximum;
        UNROLLED for (int key = 0; key < count; ++key) {
            Partial<G::lanes == 1 ? G::pack_size : 1> products;
            UNROLLED for (int p = 0; p < lane_packs; ++p) {
                const auto& pack = keys.at(key, p);
                UNROLLED for (int k = 0; k < G::pack_size; ++k)
                    products[G::lanes == 1 ? k : 0] += query[p][k] * to_float(pack[k]);
            }
            weight[key] = warp_sum<G::lanes>(products.total());
            if (key * G::teams < left) largest = fmaxf(largest, weight[key]);
        }
        state.scale_to(largest, lane_packs);
        UNROLLED for (int key = 0; key < count; ++key)
            weight[key] = key * G::teams < left ? fast_exp(weight[key] - largest) : 0.0f;
        UNROLLED for (int key = 0; key < count; ++key) {
            state.sum += weight[key];
            UNROLLED for (int p = 0; p < lane_packs; ++p) {
                const auto& pack = values.at(key, p);
                UNROLLED for (int k = 0; k < G::pack_size; ++k) state.out[p][k] += weight[key] * to_float(pack[k]);
            }
        }
    }

    const std::size_t block = std::size_t(row) * splits.count + split;
    float* const scratch = op.scratch.data();
    const DecodeResult<T> result{
        &op.out[std::size_t(row) * op.head_size], scratch + block * op.head_size,
        scratch + std::size_t(gridDim.x) * op.head_size + block * kStatistics, splits.count == 1};
    if constexpr (G::lanes == 1) {
        for (int p = 0; p < lane_packs; ++p)
            for (int k = 0; k < G::pack_size; ++k) result.store(p * G::pack_size + k, state.out[p][k], state.sum);
        if (!result.whole) result.statistics[0] = state.maximum, result.statistics[1] = state.sum;
    } else {
        SIMT_SHARED(float, sums, [G::warps][G::lanes * G::lane_packs * G::pack_size]);
        SIMT_SHARED(float, statistics, [G::warps][kStatistics]);
        merge_teams(state);
        const int warp = threadIdx.x / kWarp;
        if (threadIdx.x % kWarp < G::lanes)
            UNROLLED for (int p = 0; p < G::lane_packs; ++p)
                UNROLLED for (int k = 0; k < G::pack_size; ++k)
                    sums[warp][(lane + p * G::lanes) * G::pack_size + k] = state.out[p][k];
        if (threadIdx.x % kWarp == 0) statistics[warp][0] = state.maximum, statistics[warp][1] = state.sum;
        __syncthreads();
        float maximum = -FLT_MAX, total = 0.0f, share[G::warps];
        UNROLLED for (int w = 0; w < G::warps; ++w) maximum = fmaxf(maximum, statistics[w][0]);
        UNROLLED for (int w = 0; w < G::warps; ++w) {
            share[w] = fast_exp(statistics[w][0] - maximum);
            total += statistics[w][1] * share[w];
        }
        for (int channel = threadIdx.x; channel < op.head_size; channel += G::threads) {
            float sum = 0.0f;
            UNROLLED for (int w = 0; w < G::warps; ++w) sum += sums[w][channel] * share[w];
            result.store(channel, sum, total);
        }
        if (!result.whole && threadIdx.x == 0) result.statistics[0] = maximum, result.statistics[1] = total;
    }
}

// A block merges the splits of a row; `blocks`: splits of all rows.
template <class T>
__global__ void merge_splits_kernel(DecodeAttention<T> op, int splits, std::size_t blocks) {
    const std::size_t first = std::size_t(blockIdx.x) * splits;
    const float* const sums = op.scratch.data() + first * op.head_size;
    const float* const statistics = op.scratch.data() + blocks * op.head_size + first * kStatistics;
    float maximum = -FLT_MAX, total = 0.0f;
    for (int split = 0; split < splits; ++split) maximum = fmaxf(maximum, statistics[split * kStatistics]);
    for (int split = 0; split < splits; ++split)
        total += statistics[split * kStatistics + 1] * fast_exp(statistics[split * kStatistics] - maximum);
    for (int channel = threadIdx.x; channel < op.head_size; channel += blockDim.x) {
        float sum = 0.0f;
        for (int split = 0; split < splits; ++split)
            sum += sums[split * op.head_size + channel] * fast_exp(statistics[split * kStatistics] - maximum);
        op.out[std::size_t(blockIdx.x) * op.head_size + channel] = round_to<T>(sum / total);
    }
}

// A block copies the keys and values of one new position of one sequence.
template <class T>
__global__ void cache_append_kernel(CacheAppend<T> op) {
    constexpr int kSize = kGpuPackBytes / sizeof(T);
    const int sequence = blockIdx.x / op.count, position = blockIdx.x % op.count;
    const int head_packs = op.head_size / kSize, packs = 2 * op.heads * head_packs;
    const T* const from = op.qkv.data() + std::size_t(blockIdx.x) * 3 * op.heads * op.head_size;
    for (int i = threadIdx.x; i < packs; i += blockDim.x) {
        const int head = i / head_packs, channel = i % head_packs * kSize;  // key heads first, then value heads
        T* const cache = head < op.heads ? op.keys.data() : op.values.data();
        const std::size_t to = (std::size_t(sequence) * op.heads + head % op.heads) * op.capacity + op.first + position;
        store(cache + to * op.head_size + channel,
              Pack<T, kGpuPackBytes>(load<kGpuPackBytes>(from + (op.heads + head) * op.head_size + channel)));
    }
}

// ---- launchers

// On a CPU splits have 256 keys on every machine. On a GPU their number gives two blocks per multiprocessor, with at
// least 128 keys per split, in multiples of 128: not measured.
KeySplits key_splits(std::size_t rows, int length) {
    constexpr int kCpuKeys = 256, kMinKeys = 128, kStep = 128, kBlocksPerMultiprocessor = 2;
    int keys = kCpuKeys;
    if (simt::gpu_geometry) {
        const std::size_t target_blocks = kBlocksPerMultiprocessor * std::size_t(device::limits().multiprocessors);
        const int splits = int(std::min(ceil_div(target_blocks, rows), std::size_t(ceil_div(length, kMinKeys))));
        keys = round_up(ceil_div(length, splits), kStep);
    }
    return {ceil_div(length, keys), keys};
}

template <class Op>
void check_cache(const Op& op) {
    const auto at_least_one = [](const char* what, int value) { require(value > 0, what, value, "at least 1"); };
    at_least_one("the batch of a cache", op.batch);
    at_least_one("the number of new positions", op.count);
    at_least_one("the heads of a cache", op.heads);
    constexpr int kMultiple = 16 / sizeof(*op.qkv.data());
    require(op.head_size > 0 && op.head_size <= kMaxHeadSize && op.head_size % kMultiple == 0,
            "the head_size of a cache", op.head_size,
            kMultiple == 8 ? "a multiple of 8, at most 256" : "a multiple of 4, at most 256",
            "choose another number of heads");
    require(op.first >= 0 && op.first <= op.capacity - op.count, "the first new position", op.first,
            "0 or more, so that all " + std::to_string(op.count) + " new positions fit into " +
                std::to_string(op.capacity));
    const std::size_t position = std::size_t(op.batch) * op.heads * op.head_size;
    require_size("qkv", op.qkv, 3 * position * op.count, "batch * count * 3 * heads * head_size");
    require_size("keys", op.keys, position * op.capacity, "batch * heads * capacity * head_size");
    require_size("values", op.values, position * op.capacity, "batch * heads * capacity * head_size");
}

template <class T, int Lanes, int LanePacks, int PackBytes, bool Exact>
void launch_decode(const DecodeAttention<T>& op, const KeySplits& splits, unsigned blocks, StreamRef stream) {
    constexpr bool kTeams = Lanes > 1;
    using G = DecodeGeometry<T, Lanes, LanePacks, PackBytes, Exact, kTeams ? 8 : 64, kTeams ? 4 : 1>;
    simt::launch<decode_attention_kernel<T, G>>({.grid = blocks, .block = G::threads, .stream = stream}, op, splits,
                                                1.0f / std::sqrt(float(op.head_size)));
}

template <class T>
void launch_for_head(const DecodeAttention<T>& op, const KeySplits& splits, unsigned blocks, StreamRef stream) {
    if constexpr (simt::gpu_geometry) {
        const int packs = op.head_size * int(sizeof(T)) / kGpuPackBytes;
        if (packs <= 8) launch_decode<T, 8, 1, kGpuPackBytes, false>(op, splits, blocks, stream);
        else if (packs <= 16) launch_decode<T, 16, 1, kGpuPackBytes, false>(op, splits, blocks, stream);
        else if (packs <= kWarp) launch_decode<T, kWarp, 1, kGpuPackBytes, false>(op, splits, blocks, stream);
        else if constexpr (sizeof(T) * kMaxHeadSize > kWarp * kGpuPackBytes)
            launch_decode<T, kWarp, 2, kGpuPackBytes, false>(op, splits, blocks, stream);
    } else {
        constexpr int kElements = kCpuPackElements, kBytes = kElements * sizeof(T);
        if (op.head_size == 2 * kElements) launch_decode<T, 1, 2, kBytes, true>(op, splits, blocks, stream);
        else if (op.head_size % kElements == 0)
            launch_decode<T, 1, kMaxHeadSize / kElements, kBytes, false>(op, splits, blocks, stream);
        else launch_decode<T, 1, kMaxHeadSize / (16 / int(sizeof(T))), 16, false>(op, splits, blocks, stream);
    }
}

}  // namespace

template <class T>
void cache_append(const CacheAppend<T>& op, StreamRef stream) {
    check_cache(op);
    simt::launch<cache_append_kernel<T>>({.grid = unsigned(op.batch) * unsigned(op.count),
                                          .block = simt::gpu_geometry ? 256u : 1u, .stream = stream}, op);
}

std::size_t decode_attention_scratch(int batch, int count, int capacity, int heads, int head_size) {
    const std::size_t rows = std::size_t(batch) * count * heads;
    int splits = 1;  // because of the rounding to multiples of 128 keys a shorter cache may have more splits
    for (int length = 1; length <= capacity; ++length) splits = std::max(splits, key_splits(rows, length).count);
    return splits == 1 ? 0 : rows * splits * (std::size_t(head_size) + kStatistics);
}

template <class T>
void decode_attention(const DecodeAttention<T>& op, StreamRef stream) {
    check_cache(op);
    const std::size_t rows = std::size_t(op.batch) * op.count * op.heads;
    require_size("out", op.out, rows * op.head_size, "batch * count * heads * head_size");
    const KeySplits splits = key_splits(rows, op.first + op.count);
    const std::size_t blocks = rows * splits.count;
    require(blocks <= 0x7fffffff, "the number of blocks", blocks, "at most 2147483647", "use a smaller batch");
    if (splits.count > 1)
        require_size("scratch", op.scratch, blocks * (op.head_size + kStatistics), "decode_attention_scratch(...)");
    launch_for_head(op, splits, unsigned(blocks), stream);
    if (splits.count > 1)
        simt::launch<merge_splits_kernel<T>>({.grid = unsigned(rows), .block = simt::gpu_geometry ? 128u : 1u,
                                              .stream = stream}, op, splits.count, blocks);
}

template void cache_append(const CacheAppend<float>&, StreamRef);
template void cache_append(const CacheAppend<bf16>&, StreamRef);
template void decode_attention(const DecodeAttention<float>&, StreamRef);
template void decode_attention(const DecodeAttention<bf16>&, StreamRef);

}  // namespace kernels
