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

// Block t: the squares of p - anchor in tile t, p = x / workers. Copies: also copy = x.
template <bool Copies>
__global__ void __launch_bounds__(kThreads) outer_norm_kernel(OuterMean op, std::span<float> copy) {
    const NormTile tile = op.tiles[blockIdx.x];
    const std::int64_t end = tile.first + tile.size;
    const float workers = float(op.workers);
    double sum[kSize] = {};
    for (std::int64_t i = tile.first + threadIdx.x * kSize; i < end; i += kThreads * kSize) {
        const Values x = read(op.sums.first(end), i), anchor = read(op.anchor.first(end), i);  // 0 beyond the tile
        if constexpr (Copies) write(copy.first(end), i, x);
        UNROLLED for (int k = 0; k < kSize; ++k) {
            const double y = (Copies ? x[k] : x[k] / workers) - anchor[k];
            sum[k] += y * y;
        }
    }
    UNROLLED for (int k = 1; k < kSize; ++k) sum[0] += sum[k];
    const double total = block_sum<kThreads>(sum[0]);
    if (threadIdx.x == 0) op.partial[blockIdx.x] = total;
}

template <class T, bool Stochastic>
__global__ void __launch_bounds__(kThreads) outer_update_kernel(OuterUpdate<T> op, float of_change, float of_momentum) {
    const bool finite = std::isfinite(op.norm[0]), has_momentum = !op.momentum.empty();
    // not p + 0, which would turn -0 into +0
    const bool mean_only = op.learning_rate == 1.0f && op.mu == 0.0f;
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
                const float p = sums[k] / workers, y = p - anchor[k];
                u[k] = product(op.mu, u[k]) + y;
                const float beyond = product(of_change, y) + product(of_momentum, u[k]);
                anchor[k] = mean_only ? p : p + beyond;
            }
            if (has_momentum) write(op.momentum, i, u);
            write(op.anchor, i, anchor);
        }
        write(op.master, i, anchor);
        if constexpr (sizeof(T) != sizeof(float)) {
            UNROLLED for (int k = 0; k < kSize; k += kOptimizerSize) {
                const auto parameter = rounder.round(&anchor.element[k], i + k);
                if (i + k + kOptimizerSize <= elements) store(&op.parameter[i + k], parameter);
                else
                    UNROLLED for (int j = 0; j < kOptimizerSize; ++j)
                        if (i + k + j < elements) op.parameter[i + k + j] = parameter[j];
            }
        }
    }
}

void check_sizes(std::size_t elements, std::initializer_list<std::size_t> sizes, int workers) {
    for (const std::size_t size : sizes)
        require(size == elements, "the size of an outer step's array", size,
                "that of anchor, " + std::to_string(elements));
    require(workers >= 1, "the number of workers", workers, "at least 1");
}

template <bool Copies>
void launch_norm(const OuterMean& op, std::span<float> copy, StreamRef stream) {
    require_size("partial", op.partial, op.tiles.size(), "the number of tiles");
    if (op.tiles.empty()) return;
    simt::launch<outer_norm_kernel<Copies>>({.grid = unsigned(op.tiles.size()), .block = kThreads, .stream = stream},
                                            op, copy);
}

}  // namespace

void outer_change(const OuterChange& op, StreamRef stream) {
    check_sizes(op.anchor.size(), {op.values.size(), op.master.size()}, 1);
    launch_norm<true>({op.master, op.anchor, op.tiles, op.partial, 1}, op.values, stream);
}

void outer_mean(const OuterMean& op, StreamRef stream) {
    check_sizes(op.anchor.size(), {op.sums.size()}, op.workers);
    launch_norm<false>(op, {}, stream);
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
                                                         op.learning_rate - 1.0f, op.learning_rate * op.mu);
    });
}

template void outer_update(const OuterUpdate<float>&, StreamRef);
template void outer_update(const OuterUpdate<bf16>&, StreamRef);

}  // namespace kernels
