// outer.cu - one block per tile: the squared norm of a difference, and the update
#include "kernels/outer.h"

#include <cmath>

#include "kernels/base/error.h"
#include "kernels/math.cuh"
#include "kernels/onebit_tile.cuh"
#include "kernels/rounding.cuh"

namespace kernels {
namespace {

using namespace onebit;

// What outer_norm_kernel does besides: nothing; copy = x; copy = (x - anchor) / rate_sum.
enum class Then { nothing, copy, divide };

// Block t: the squares of p - anchor in tile t, p = x / workers. With Then::divide masked elements count as 0.
template <Then What>
__global__ void __launch_bounds__(kThreads) outer_norm_kernel(OuterMean op, std::span<float> copy, float rate_sum,
                                                              std::span<const std::uint32_t> mask) {
    const NormTile tile = op.tiles[blockIdx.x];
    const std::int64_t end = tile.first + tile.size;
    const float workers = float(op.workers);
    double sum[kSize] = {};
    for (std::int64_t i = tile.first + threadIdx.x * kSize; i < end; i += kThreads * kSize) {
        const Values x = read(op.sums.first(end), i), anchor = read(op.anchor.first(end), i);  // 0 beyond the tile
        if constexpr (What == Then::copy) write(copy.first(end), i, x);
        if constexpr (What == Then::divide) {
            const std::uint32_t active = active_at(mask, i);
            Values change;
            UNROLLED for (int k = 0; k < kSize; ++k) {
                const float y = active >> k & 1 ? x[k] - anchor[k] : 0.0f;
                sum[k] += double(y) * double(y);
                change[k] = y / rate_sum;
            }
            write(copy.first(end), i, change);
            continue;
        }
        UNROLLED for (int k = 0; k < kSize; ++k) {
            const double y = (What == Then::copy ? x[k] : x[k] / workers) - anchor[k];
            sum[k] += y * y;
        }
    }
    UNROLLED for (int k = 1; k < kSize; ++k) sum[0] += sum[k];
    const double total = block_sum<kThreads>(sum[0]);
    if (threadIdx.x == 0) op.partial[blockIdx.x] = total;
}

// SGD with Nesterov's momentum; of_change = lr - 1, of_momentum = lr * mu.
struct Nesterov {
    float mu, of_change, of_momentum;
    bool mean_only;  // then the anchor is p, not p + 0, which would turn -0 into +0

    Nesterov(float learning_rate, float momentum)
        : mu(momentum), of_change(learning_rate - 1.0f), of_momentum(learning_rate * momentum),
          mean_only(learning_rate == 1.0f && momentum == 0.0f) {}
    // Updates u; returns the new anchor.
    __device__ __forceinline__ float move(float p, float y, float& u, const RoundedProduct& product) const {
        u = product(mu, u) + y;
        const float beyond = product(of_change, y) + product(of_momentum, u);
        return mean_only ? p : p + beyond;
    }
};

// Elements [i, i + kSize) of the parameters, up to the end of the array.
template <class T, bool Stochastic>
__device__ __forceinline__ void write_rounded(std::span<T> parameters, std::int64_t i, const Values& master,
                                              Rounder<T, Stochastic>& rounder) {
    const std::int64_t elements = std::int64_t(parameters.size());
    UNROLLED for (int k = 0; k < kSize; k += kOptimizerSize) {
        const auto parameter = rounder.round(&master.element[k], i + k);
        if (i + k + kOptimizerSize <= elements) store(&parameters[i + k], parameter);
        else
            UNROLLED for (int j = 0; j < kOptimizerSize; ++j)
                if (i + k + j < elements) parameters[i + k + j] = parameter[j];
    }
}

template <class T, bool Stochastic>
__global__ void __launch_bounds__(kThreads) outer_update_kernel(OuterUpdate<T> op, Nesterov step) {
    const bool finite = std::isfinite(op.norm[0]), has_momentum = !op.momentum.empty();
    const float workers = float(op.workers);
    const RoundedProduct product;
    Rounder<T, Stochastic> rounder(op.rounding, op.scalars[0].adam_step);
    const std::int64_t tile = std::int64_t(blockIdx.x) * kTile, elements = std::int64_t(op.anchor.size());
    for (std::int64_t i = tile + threadIdx.x * kSize; i < tile + kTile && i < elements; i += kThreads * kSize) {
        Values anchor = read(op.anchor, i);
        if (finite) {
            const Values sums = read(op.sums, i);
            Values u = has_momentum ? read(op.momentum, i) : Values{};
            UNROLLED for (int k = 0; k < kSize; ++k) {
                const float p = sums[k] / workers;
                anchor[k] = step.move(p, p - anchor[k], u[k], product);
            }
            if (has_momentum) write(op.momentum, i, u);
            write(op.anchor, i, anchor);
        }
        write(op.master, i, anchor);
        if constexpr (sizeof(T) != sizeof(float)) write_rounded<T, Stochastic>(op.parameter, i, anchor, rounder);
    }
}

template <int Bits>
__global__ void __launch_bounds__(kThreads) outer_apply_kernel(OuterApply op, Nesterov step) {
    const OnebitTile tile = op.tiles[blockIdx.x];
    const std::int64_t first_word = (tile.first - tile.chunk * op.layout.chunk) * Bits / 32, size = op.layout.size;
    const bool finite = op.finite[0] != 0, has_momentum = !op.momentum.empty(), has_error = !op.error.empty();
    const std::uint32_t* const got = bits_in(op.replies, op.layout, tile.chunk) + first_word;
    const std::uint32_t* const sent = has_error ? bits_in(op.messages, op.layout, tile.chunk) + first_word : nullptr;
    const float b = scale_in(op.replies, op.layout, tile.chunk, tile.group);
    const float a = has_error ? scale_in(op.messages, op.layout, tile.chunk, op.one ? 0 : tile.group) : 0.0f;
    const RoundedProduct product;
    double sum[kSize] = {};
    for (int in_tile = first_of(0); finite && in_tile < tile.size; in_tile += kThreads * kSize) {
        const std::int64_t i = tile.first + in_tile;
        if (i >= size) break;  // padding, whose error is 0 and stays 0
        const std::uint32_t active = active_at(op.active, i);
        const Values mean = decoded<Bits>(got, in_tile, b, product);
        Values anchor = read(op.anchor, i), u = has_momentum ? read(op.momentum, i) : Values{};
        UNROLLED for (int k = 0; k < kSize; ++k) {
            const float y = active >> k & 1 ? product(op.rate_sum, mean[k]) : 0.0f;
            anchor[k] = step.move(anchor[k] + y, y, u[k], product);
            sum[k] += double(y) * double(y);
        }
        if (has_error) {
            const Values own = decoded<Bits>(sent, in_tile, a, product);
            Values z = read(op.compensated, i);
            UNROLLED for (int k = 0; k < kSize; ++k) z[k] = active >> k & 1 ? z[k] - own[k] : 0.0f;
            write(op.error, i, z);
        }
        if (has_momentum) write(op.momentum, i, u);
        write(op.anchor, i, anchor);
    }
    UNROLLED for (int k = 1; k < kSize; ++k) sum[0] += sum[k];
    const double total = block_sum<kThreads>(sum[0]);
    if (threadIdx.x == 0) op.partial[blockIdx.x] = finite ? total : NAN;
}

void check_sizes(std::size_t elements, std::initializer_list<std::size_t> sizes, int workers) {
    for (const std::size_t size : sizes)
        require(size == elements, "the size of an outer step's array", size,
                "that of anchor, " + std::to_string(elements));
    require(workers >= 1, "the number of workers", workers, "at least 1");
}

template <Then What>
void launch_norm(const OuterMean& op, std::span<float> copy, StreamRef stream, float rate_sum = 0,
                 std::span<const std::uint32_t> mask = {}) {
    require_size("partial", op.partial, op.tiles.size(), "the number of tiles");
    if (op.tiles.empty()) return;
    simt::launch<outer_norm_kernel<What>>({.grid = unsigned(op.tiles.size()), .block = kThreads, .stream = stream},
                                          op, copy, rate_sum, mask);
}

}  // namespace

void outer_change(const OuterChange& op, StreamRef stream) {
    check_sizes(op.anchor.size(), {op.values.size(), op.master.size()}, 1);
    require(op.rate_sum >= 0, "the sum of learning rates", op.rate_sum, "0 or more");
    if (!op.active.empty()) require_size("active", op.active, ceil_div(op.anchor.size(), 32));
    const OuterMean mean{op.master, op.anchor, op.tiles, op.partial, 1};
    if (op.rate_sum == 0) launch_norm<Then::copy>(mean, op.values, stream);
    else launch_norm<Then::divide>(mean, op.values, stream, op.rate_sum, op.active);
}

void outer_mean(const OuterMean& op, StreamRef stream) {
    check_sizes(op.anchor.size(), {op.sums.size()}, op.workers);
    launch_norm<Then::nothing>(op, {}, stream);
}

template <class T>
void outer_update(const OuterUpdate<T>& op, StreamRef stream) {
    const std::size_t elements = op.anchor.size();
    const std::size_t momentum = op.momentum.empty() && op.mu == 0 ? elements : op.momentum.size();
    check_sizes(elements, {op.parameter.size(), op.master.size(), op.sums.size(), momentum}, op.workers);
    require_size("norm", op.norm, 1);
    require_size("scalars", op.scalars, 1);
    const std::int64_t first = op.rounding.first_element;
    require(first >= 0 && first % 16 == 0, "index of the first element", first, "a multiple of 16");
    check_rounding(op.rounding, op.parameter, op.master);
    if (elements == 0) return;
    with_rounding<T>(op.rounding, [&]<bool Stochastic>() {
        const unsigned tiles = unsigned(ceil_div(elements, kTile));
        simt::launch<outer_update_kernel<T, Stochastic>>({.grid = tiles, .block = kThreads, .stream = stream}, op,
                                                         Nesterov(op.learning_rate, op.mu));
    });
}

void outer_apply(const OuterApply& op, StreamRef stream) {
    const OnebitLayout& layout = op.layout;
    const std::int64_t words = layout.ranks * layout.message_words();
    require(layout.size % 32 == 0 && layout.chunk % 32 == 0, "the elements of a bucket", layout.size,
            "a multiple of 32, and so the length of its chunks");
    require(op.rate_sum > 0, "the sum of learning rates", op.rate_sum, "above 0");
    if (!op.error.empty() || !op.compensated.empty() || !op.messages.empty()) {
        require_size("error", op.error, layout.padded());
        require_size("compensated", op.compensated, layout.size);
        require_size("messages", op.messages, words);
    }
    if (!op.active.empty()) require_size("active", op.active, ceil_div(layout.padded(), 32));
    if (!op.momentum.empty() || op.mu != 0) require_size("momentum", op.momentum, layout.size);
    require_size("replies", op.replies, words);
    require_size("anchor", op.anchor, layout.size);
    require_size("partial", op.partial, op.tiles.size());
    require_size("finite", op.finite, 1);
    if (op.tiles.empty()) return;
    with_bits(layout, [&]<int Bits>() {
        simt::launch<outer_apply_kernel<Bits>>({.grid = unsigned(op.tiles.size()), .block = kThreads,
                                                .stream = stream}, op, Nesterov(op.learning_rate, op.mu));
    });
}

template void outer_update(const OuterUpdate<float>&, StreamRef);
template void outer_update(const OuterUpdate<bf16>&, StreamRef);

}  // namespace kernels
