// onebit.cu - reads vectors of adjacent elements, combines the sign bits of eight lanes into one 32-bit word, and sums
// a tile in a fixed order
#include "kernels/onebit.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/onebit_tile.cuh"
#include "kernels/reduce.cuh"

namespace kernels {
namespace {

using namespace onebit;

// Sums partial vectors (`Partial`), each in the order of its elements. A CPU sums kAtOnce of them at a time, because
// additions to different totals are independent and overlap.
struct SumOfRuns {
    static constexpr int kAtOnce = simt::gpu_geometry ? 1 : 8;
    Partial<kSize> runs[kAtOnce];
    int pending = 0;
    double sum = 0;

    __device__ __forceinline__ void add(const Partial<kSize>& run) {
        runs[pending] = run;
        if (++pending == kAtOnce) flush();
    }
    __device__ __forceinline__ void flush() {
        float totals[kAtOnce] = {};
        UNROLLED for (int k = 0; k < kSize; ++k)
            UNROLLED for (int i = 0; i < kAtOnce; ++i) totals[i] += runs[i][k];
        UNROLLED for (int i = 0; i < kAtOnce; ++i)
            if (i < pending) sum += double(totals[i]);
        pending = 0;
    }
    __device__ __forceinline__ double total() {
        if (pending > 0) flush();
        return sum;
    }
};

// Error compensation of one tile, shared by worker and server: make(i) returns the compensated values of elements
// [i, i + kSize) of the tile, keep() stores them, with 1 bit per element their sign bits are written to `words`, and
// the sum of the squares of the whole tile to `partial`. active(i) returns the mask bits of these elements.
template <int Bits, class Make, class Keep, class Active>
__device__ void compensate_tile(const OnebitTile& tile, std::uint32_t* words, double* partial, Make make, Keep keep,
                                Active active) {
    SumOfRuns sum;
    // `whole`: no element is masked, and the packs do not reach beyond the end of the tile.
    const auto compensate = [&](int base, auto whole) {
        Values all[kPacks];
        std::uint32_t counted[kPacks];
        UNROLLED for (int j = 0; j < kPacks; ++j) {
            const int i = base + first_of(j);
            counted[j] = whole() ? ~0u : i < tile.size ? active(i) : 0;
            all[j] = whole() || i < tile.size ? make(i) : Values{};
        }
        Partial<kSize> run;
        UNROLLED for (int j = 0; j < kPacks; ++j) {
            const int i = base + first_of(j);
            // Elements of the tile from i on: less than kSize where a CPU tile ends within a word, 0 or less after it.
            const int left = whole() ? kSize : tile.size - i;
            UNROLLED for (int k = 0; k < kSize; ++k) {
                all[j][k] = counted[j] >> k & 1 ? all[j][k] : 0.0f;
                run[k] += k < left ? all[j][k] * all[j][k] : 0.0f;
            }
            const std::uint32_t inside = left >= kSize ? ~0u >> (32 - kSize) : left > 0 ? (1u << left) - 1 : 0;
            if constexpr (Bits == 1) write_bits(words, i, tile.size, signs_of(all[j]) & inside);
            if (whole() || i < tile.size) keep(i, all[j], left, counted[j]);
        }
        sum.add(run);
    };
    for (int base = 0; base < tile.size; base += kThreads * kSize * kPacks) {
        if constexpr (!simt::gpu_geometry) {
            if (base + kSize <= tile.size && active(base) == ~0u) {
                compensate(base, std::true_type());
                continue;
            }
        }
        compensate(base, std::false_type());
    }
    const double total = block_sum<kThreads>(sum.total());
    if (threadIdx.x == 0) *partial = total;
}

// What an error contributes: d times it; 0 if there are no errors.
__device__ __forceinline__ Values carried(std::span<const float> error, std::int64_t i, float weight,
                                          const RoundedProduct& product) {
    Values e = read(error, i);
    if (weight != 1.0f)
        UNROLLED for (int k = 0; k < kSize; ++k) e[k] = product(weight, e[k]);
    return e;
}

template <int Bits>
__global__ void __launch_bounds__(kThreads) onebit_compress_kernel(OnebitCompress op) {
    const OnebitTile tile = op.tiles[blockIdx.x];
    const std::int64_t in_chunk = tile.first - tile.chunk * op.layout.chunk;
    std::uint32_t* const words = &op.messages[tile.chunk * op.layout.message_words() + op.layout.header_words() +
                                              in_chunk / 32];
    const float weight = op.gradient_scale.empty() ? op.gradient_weight : op.gradient_weight * op.gradient_scale[0];
    const std::span<const float> gradient = op.values.first(op.layout.size);
    const RoundedProduct product;
    const auto make = [&](int at) {
        const std::int64_t i = tile.first + at;
        Values z = carried(op.error, i, op.error_weight, product);
        const Values g = read(gradient, i);
        if (op.momentum.empty()) {
            UNROLLED for (int k = 0; k < kSize; ++k) z[k] += weight * g[k];
            return z;
        }
        const Values m = read(op.momentum, i);
        if (op.second_moment.empty()) {
            UNROLLED for (int k = 0; k < kSize; ++k) z[k] += op.momentum_weight * m[k] + weight * g[k];
            return z;
        }
        const Values v = read(op.second_moment, i, 1.0f);
        UNROLLED for (int k = 0; k < kSize; ++k)
            z[k] += (op.momentum_weight * m[k] + weight * g[k]) / (sqrtf(v[k]) + op.eps);
        return z;
    };
    compensate_tile<Bits>(
        tile, words, &op.partial[blockIdx.x], make,
        [&](int at, Values z, int left, std::uint32_t counted) {
            constexpr std::uint32_t kAll = ~0u >> (32 - kSize);
            if ((counted & kAll) != kAll && tile.first + at < op.layout.size) {
                const Values g = read(gradient, tile.first + at);
                UNROLLED for (int k = 0; k < kSize; ++k) z[k] = counted >> k & 1 ? z[k] : g[k];
            }
            write_inside(op.values, tile.first + at, z, left);
        },
        [&](int at) { return active_at(op.active, tile.first + at); });
}

template <int Bits>
__global__ void __launch_bounds__(kThreads) onebit_serve_kernel(OnebitServe op) {
    const OnebitTile tile = op.tiles[blockIdx.x];
    std::uint32_t* const words = &op.reply[op.layout.header_words() + tile.first / 32];
    const int scale = op.one ? 0 : tile.group;
    const float ranks = float(op.layout.ranks);
    const RoundedProduct product;
    const auto make = [&](int at) {
        const std::int64_t i = tile.first + at;
        Values s{};
        for (int rank = 0; rank < op.layout.ranks; ++rank) {
            const float a = scale_in(op.received, op.layout, rank, scale) / ranks;
            const Values sent = decoded<Bits>(bits_in(op.received, op.layout, rank), i, a, product);
            UNROLLED for (int k = 0; k < kSize; ++k) s[k] += sent[k];
        }
        const Values error = carried(op.error, i, op.error_weight, product);
        UNROLLED for (int k = 0; k < kSize; ++k) s[k] += error[k];
        return s;
    };
    compensate_tile<Bits>(
        tile, words, &op.partial[blockIdx.x], make,
        [&](int at, const Values& s, int left, std::uint32_t) { write_inside(op.sums, tile.first + at, s, left); },
        [&](int at) { return active_at(op.active, op.chunk * op.layout.chunk + tile.first + at); });
}

__device__ float root_mean_square(double sum_of_squares, std::int64_t count) {
    return count > 0 ? float(sqrt(sum_of_squares / double(count))) : 0.0f;
}

// Block i processes group i; with op.one, a single block processes all groups.
__global__ void __launch_bounds__(kThreads) onebit_scales_kernel(OnebitScales op) {
    const std::size_t first = op.one ? 0 : blockIdx.x, end = op.one ? op.groups.size() : first + 1;
    double sum = 0;
    std::int64_t count = 0;
    for (std::size_t group = first; group < end; ++group) count += op.groups[group].active;
    for (int tile = op.groups[first].first_tile + int(threadIdx.x); tile < op.groups[end - 1].end_tile;
         tile += kThreads)
        sum += op.partial[tile];
    const std::uint32_t scale = __float_as_uint(op.factor * root_mean_square(block_sum<kThreads>(sum), count));
    if (!op.one) {
        const OnebitGroup& group = op.groups[first];
        if (threadIdx.x == 0) op.messages[group.chunk * op.layout.message_words() + group.index] = scale;
        return;
    }
    for (int message = threadIdx.x; message < op.layout.ranks; message += kThreads)
        op.messages[message * op.layout.message_words()] = scale;
}

__global__ void __launch_bounds__(kThreads) onebit_quantize_kernel(OnebitQuantize op) {
    const OnebitTile tile = op.tiles[blockIdx.x];
    const std::int64_t in_chunk = tile.first - tile.chunk * op.layout.chunk;
    std::uint32_t* const words = &op.messages[tile.chunk * op.layout.message_words() + op.layout.header_words() +
                                              in_chunk / kPerWord];
    const float scale = scale_in(op.messages, op.layout, tile.chunk, op.one ? 0 : tile.group);
    for (int base = 0; base < tile.size; base += kThreads * kSize * kPacks) {
        Values z[kPacks] = {};
        UNROLLED for (int j = 0; j < kPacks; ++j) {
            const int i = base + first_of(j);
            if (i >= tile.size) continue;
            z[j] = read(op.values, tile.first + i);
            const std::uint32_t active = active_at(op.active, tile.first + i);
            UNROLLED for (int k = 0; k < kSize; ++k) z[j][k] = active >> k & 1 ? z[j][k] : 0.0f;
        }
        UNROLLED for (int j = 0; j < kPacks; ++j) write_levels(words, base + first_of(j), tile.size, z[j], scale);
    }
}

__global__ void __launch_bounds__(kThreads) onebit_check_scales_kernel(OnebitScalesCheck op) {
    double bad = 0;
    for (std::size_t i = threadIdx.x; i < op.groups.size(); i += kThreads) {
        const OnebitGroup& group = op.groups[i];
        bad += !std::isfinite(scale_in(op.replies, op.layout, group.chunk, group.index));
    }
    bad = block_sum<kThreads>(bad);
    if (threadIdx.x == 0 && bad > 0) op.finite[0] = 0;
}

__global__ void __launch_bounds__(kThreads) onebit_agree_kernel(OnebitAgree op) {
    double bad = 0;
    for (std::size_t i = threadIdx.x; i < op.verdicts.size(); i += kThreads) bad += op.verdicts[i] == 0;
    bad = block_sum<kThreads>(bad);
    if (threadIdx.x == 0 && bad > 0) op.finite[0] = 0;
}

template <int Bits>
__global__ void __launch_bounds__(kThreads) onebit_commit_kernel(OnebitCommit op) {
    if (op.finite[0] == 0) return;
    const OnebitTile tile = op.tiles[blockIdx.x];
    const float b = scale_in(op.reply, op.layout, 0, tile.group);
    const std::uint32_t* const words = bits_in(op.reply, op.layout, 0) + tile.first * Bits / 32;
    const RoundedProduct product;
    for (int base = 0; base < tile.size; base += kThreads * kSize * kPacks) {
        Values s[kPacks] = {};
        std::uint32_t active[kPacks] = {};
        UNROLLED for (int j = 0; j < kPacks; ++j) {
            const int i = base + first_of(j);
            if (i >= tile.size) continue;
            s[j] = read(op.sums, tile.first + i);
            active[j] = active_at(op.active, op.chunk * op.layout.chunk + tile.first + i);
        }
        UNROLLED for (int j = 0; j < kPacks; ++j) {
            const int i = base + first_of(j), left = tile.size - i;
            if (left <= 0) continue;
            Values sent;
            if constexpr (Bits == 1) {
                const std::uint32_t signs = signs_of(s[j]);
                UNROLLED for (int k = 0; k < kSize; ++k) sent[k] = times_sign(b, signs, k);
            } else {
                sent = decoded<Bits>(words, i, b, product);
            }
            UNROLLED for (int k = 0; k < kSize; ++k) s[j][k] = active[j] >> k & 1 ? s[j][k] - sent[k] : 0.0f;
            write_inside(op.error, tile.first + i, s[j], left);
        }
    }
}

simt::LaunchConfig blocks_of(std::span<const OnebitTile> tiles, StreamRef stream) {
    return {.grid = unsigned(tiles.size()), .block = kThreads, .stream = stream};
}

void check_active(std::span<const std::uint32_t> active, std::int64_t elements) {
    if (!active.empty()) require_size("active", active, ceil_div(elements, 32));
}
// Elements that an array of values must have: masked padding is not stored.
std::int64_t min_values(const OnebitLayout& layout, std::span<const std::uint32_t> active) {
    return active.empty() ? layout.padded() : layout.size;
}
void check_error(const OnebitLayout& layout, std::span<const float> error, std::int64_t elements) {
    if (layout.bits == 1 || !error.empty()) require_size("error", error, elements);
}

// `next_end(first)`: the end of the group that begins at element `first`, before it is cut at the end of its chunk.
template <class NextEnd>
OnebitPlan cut_into_groups(const OnebitLayout& layout, std::span<const std::uint32_t> active, NextEnd&& next_end) {
    check_active(active, layout.padded());
    const auto count = [&](std::int64_t first, std::int64_t end) {
        if (active.empty()) return end - first;
        std::int64_t found = 0;
        for (std::int64_t i = first; i < end; ++i) found += active[std::size_t(i / 32)] >> i % 32 & 1;
        return found;
    };
    OnebitPlan plan{.layout = layout, .tiles = {}, .groups = {}};
    for (int chunk = 0; chunk < layout.ranks; ++chunk) {
        const std::int64_t end = (chunk + 1) * layout.chunk;
        std::int32_t index = 0;
        for (std::int64_t first = chunk * layout.chunk; first < end; ++index) {
            const std::int64_t last = std::min(end, next_end(first));
            OnebitGroup group{.first_tile = std::int32_t(plan.tiles.size()), .end_tile = 0, .chunk = chunk,
                              .index = index, .active = count(first, last)};
            for (std::int64_t tile = first; tile < last; tile += kTile)
                plan.tiles.push_back({tile, std::int32_t(std::min<std::int64_t>(kTile, last - tile)), chunk, index});
            group.end_tile = std::int32_t(plan.tiles.size());
            plan.groups.push_back(group);
            first = last;
        }
        plan.layout.scales = std::max(plan.layout.scales, int(index));
    }
    return plan;
}

}  // namespace

OnebitLayout onebit_layout(std::int64_t size, int ranks, int alignment, int bits) {
    require(size >= 0, "the size of a bucket", size, "0 or more");
    require(ranks >= 1, "the number of ranks", ranks, "at least 1");
    require(alignment >= 8 && alignment % 8 == 0, "the alignment of chunks", alignment, "a multiple of 8");
    require(bits == 1 || bits == 4, "the bits of an element", bits, "1 or 4");
    const std::int64_t unit = std::int64_t(alignment) * ranks;
    return {.size = size, .ranks = ranks, .chunk = ceil_div(size, unit) * alignment, .bits = bits};
}

OnebitPlan onebit_plan(const OnebitLayout& layout, std::int64_t group_elements,
                       std::span<const std::uint32_t> active) {
    require(group_elements >= 0 && group_elements % 32 == 0, "the elements of a group", group_elements,
            "a multiple of 32, or 0 for one group per chunk");
    const std::int64_t size = group_elements == 0 ? layout.chunk : group_elements;
    return cut_into_groups(layout, active, [&](std::int64_t first) { return first + size; });
}

OnebitPlan onebit_plan(const OnebitLayout& layout, std::span<const std::int64_t> ends,
                       std::span<const std::uint32_t> active) {
    require(layout.chunk % 32 == 0, "the elements of a chunk", layout.chunk, "a multiple of 32");
    for (std::size_t i = 0; i < ends.size(); ++i)
        require(ends[i] % 32 == 0 && ends[i] > (i == 0 ? 0 : ends[i - 1]), "the end of a group", ends[i],
                "a multiple of 32 above the previous end");
    return cut_into_groups(layout, active, [&](std::int64_t first) {
        const auto end = std::ranges::upper_bound(ends, first);
        return end == ends.end() || end + 1 == ends.end() ? layout.padded() : *end;
    });
}

OnebitPlan onebit_plan_of_chunk(const OnebitPlan& plan, int chunk) {
    OnebitPlan served{.layout = plan.layout, .tiles = {}, .groups = {}};
    for (OnebitTile tile : plan.tiles) {
        if (tile.chunk != chunk) continue;
        tile.first -= chunk * plan.layout.chunk;
        tile.chunk = 0;
        served.tiles.push_back(tile);
    }
    std::int32_t before = -1;  // number of tiles in earlier chunks
    for (OnebitGroup group : plan.groups) {
        if (group.chunk != chunk) continue;
        if (before < 0) before = group.first_tile;
        group.first_tile -= before;
        group.end_tile -= before;
        group.chunk = 0;
        served.groups.push_back(group);
    }
    return served;
}

void onebit_compress(const OnebitCompress& op, StreamRef stream) {
    const OnebitLayout& layout = op.layout;
    require_size("values", op.values, min_values(layout, op.active));
    check_error(layout, op.error, layout.padded());
    require_size("messages", op.messages, layout.ranks * layout.message_words());
    require_size("partial", op.partial, op.tiles.size());
    if (!op.momentum.empty()) require_size("momentum", op.momentum, layout.size);
    if (!op.second_moment.empty()) require_size("second_moment", op.second_moment, layout.size);
    require(op.second_moment.empty() || !op.momentum.empty(), "momentum", "empty",
            "an array, because second_moment is set");
    check_active(op.active, layout.padded());
    if (op.tiles.empty()) return;
    OnebitCompress cut = op;  // elements beyond the bucket are padding
    if (!op.momentum.empty()) cut.momentum = op.momentum.first(std::size_t(layout.size));
    if (!op.second_moment.empty()) cut.second_moment = op.second_moment.first(std::size_t(layout.size));
    with_bits(layout, [&]<int Bits>() {
        simt::launch<onebit_compress_kernel<Bits>>(blocks_of(op.tiles, stream), cut);
    });
}

void onebit_quantize(const OnebitQuantize& op, StreamRef stream) {
    const OnebitLayout& layout = op.layout;
    require(layout.bits == 4, "the bits of an element", layout.bits, "4");
    require_size("values", op.values, min_values(layout, op.active));
    require_size("messages", op.messages, layout.ranks * layout.message_words());
    check_active(op.active, layout.padded());
    if (op.tiles.empty()) return;
    simt::launch<onebit_quantize_kernel>(blocks_of(op.tiles, stream), op);
}

void onebit_scales(const OnebitScales& op, StreamRef stream) {
    if (op.groups.empty()) return;
    require_size("messages", op.messages,
                 (op.one || int(op.groups.size()) > op.layout.scales ? op.layout.ranks : 1) *
                     op.layout.message_words());
    simt::launch<onebit_scales_kernel>({.grid = op.one ? 1 : unsigned(op.groups.size()), .block = kThreads,
                                        .stream = stream}, op);
}

void onebit_serve(const OnebitServe& op, StreamRef stream) {
    const OnebitLayout& layout = op.layout;
    require(op.chunk >= 0 && op.chunk < layout.ranks, "the chunk to serve", op.chunk,
            "from 0 to the number of ranks - 1");
    require_size("sums", op.sums, layout.chunk);
    check_error(layout, op.error, layout.chunk);
    require_size("received", op.received, layout.ranks * layout.message_words());
    require_size("reply", op.reply, layout.message_words());
    require_size("partial", op.partial, op.tiles.size());
    check_active(op.active, layout.padded());
    if (op.tiles.empty()) return;
    with_bits(layout, [&]<int Bits>() { simt::launch<onebit_serve_kernel<Bits>>(blocks_of(op.tiles, stream), op); });
}

void onebit_check_scales(const OnebitScalesCheck& op, StreamRef stream) {
    require_size("finite", op.finite, 1);
    require_size("replies", op.replies, op.layout.ranks * op.layout.message_words());
    if (op.groups.empty()) return;
    simt::launch<onebit_check_scales_kernel>({.grid = 1, .block = kThreads, .stream = stream}, op);
}

void onebit_agree(const OnebitAgree& op, StreamRef stream) {
    require_size("finite", op.finite, 1);
    simt::launch<onebit_agree_kernel>({.grid = 1, .block = kThreads, .stream = stream}, op);
}

void onebit_commit(const OnebitCommit& op, StreamRef stream) {
    require_size("sums", op.sums, op.layout.chunk);
    require_size("error", op.error, op.layout.chunk);
    require_size("reply", op.reply, op.layout.message_words());
    require_size("finite", op.finite, 1);
    check_active(op.active, op.layout.padded());
    if (op.tiles.empty()) return;
    with_bits(op.layout, [&]<int Bits>() {
        simt::launch<onebit_commit_kernel<Bits>>(blocks_of(op.tiles, stream), op);
    });
}

}  // namespace kernels
