// onebit_adam.cu - one block per tile of the bucket: decodes bits and scales to the momentum, then applies the update
#include "kernels/onebit_adam.h"

#include "kernels/base/error.h"
#include "kernels/onebit_tile.cuh"
#include "kernels/rounding.cuh"

namespace kernels {
namespace {

using namespace onebit;

static_assert(kSize % kOptimizerSize == 0 && kThreads == kOptimizerThreads);

template <class T, bool Stochastic, bool UpdateSpace>
__global__ void __launch_bounds__(kThreads) onebit_adam_kernel(OnebitAdam<T> op) {
    const StepScalars& step = op.scalars[0];
    if (step.skip != kNoSkip) return;
    const OnebitTile tile = op.tiles[blockIdx.x];
    const std::int64_t in_chunk = tile.first - tile.chunk * op.layout.chunk;
    const std::uint32_t* const words = bits_in(op.replies, op.layout, tile.chunk) + in_chunk / 32;
    const bool compressed = !op.messages.empty();
    const float a = compressed ? scale_in(op.messages, op.layout, tile.chunk, op.one ? 0 : tile.group) : 0.0f;
    const float b = scale_in(op.replies, op.layout, tile.chunk, tile.group);
    const float rate = step.learning_rate, correction = step.first_correction;
    Rounder<T, Stochastic> rounder(op.rounding, step.adam_step);
    const std::int64_t size = op.layout.size;
    Values moved = {};  // running maxima, one per pack element: a CPU then vectorises the loop (else 19 ns per element)
    int segment = tile.first < size ? find_segment(op.segments, op.rounding.first_element + tile.first) : 0;
    for (int base = 0; base < tile.size; base += kThreads * kSize * kPacks) {
        Values z[kPacks] = {}, v[kPacks] = {}, master[kPacks] = {};
        std::uint32_t bits[kPacks] = {}, active[kPacks] = {};
        UNROLLED for (int j = 0; j < kPacks; ++j) {
            const int in_tile = base + (j * kThreads + int(threadIdx.x)) * kSize;
            const std::int64_t i = tile.first + in_tile;
            if (in_tile >= tile.size || i >= size) continue;  // padding, whose error is 0 and stays 0
            if (compressed) z[j] = read(op.compensated, i);
            v[j] = read(op.v, i);
            master[j] = read(op.master, i);
            bits[j] = chunk_bits(words, in_tile);
            active[j] = active_at(op.active, i);
        }
        UNROLLED for (int j = 0; j < kPacks; ++j) {
            const int in_tile = base + (j * kThreads + int(threadIdx.x)) * kSize;
            const std::int64_t i = tile.first + in_tile;
            if (in_tile >= tile.size || i >= size) continue;
            while (op.segments[segment].end <= op.rounding.first_element + i) ++segment;
            const std::int32_t decays = op.segments[segment].decays;
            if (decays == kUnchanged) continue;
            const float decay = decays ? op.weight_decay : 0.0f;
            const std::uint32_t signs = signs_of(z[j]);
            Values error, m;
            UNROLLED for (int k = 0; k < kSize; ++k) {
                const bool counts = active[j] >> k & 1;
                const float denominator = sqrtf(v[j][k]) + op.eps;
                const float y = counts ? times_sign(b, bits[j], k) : 0.0f;
                error[k] = counts ? z[j][k] - times_sign(a, signs, k) : 0.0f;
                m[k] = UpdateSpace ? y * denominator : y;
                const float direction = m[k] * correction / denominator, move = fabsf(rate * direction);
                moved[k] = move > moved[k] ? move : moved[k];
                master[j][k] -= rate * (direction + decay * master[j][k]);
            }
            if (compressed) write(op.error, i, error);
            write(op.m, i, m);
            write(op.master, i, master[j]);
            if constexpr (sizeof(T) != sizeof(float)) {
                UNROLLED for (int k = 0; k < kSize; k += kOptimizerSize)
                    store(&op.parameter[i + k], rounder.round(&master[j].element[k], i + k));
            }
        }
    }
    float largest = 0.0f;
    UNROLLED for (int k = 0; k < kSize; ++k) largest = fmaxf(largest, moved[k]);
    largest = block_max<kThreads>(largest);
    if (threadIdx.x == 0) op.largest[blockIdx.x] = largest;
}

__global__ void __launch_bounds__(1) onebit_admit_kernel(std::span<std::int32_t> finite,
                                                         std::span<const StepScalars> scalars) {
    finite[0] = scalars[0].skip == kNoSkip;
}

__global__ void __launch_bounds__(1) onebit_skip_non_finite_kernel(std::span<StepScalars> scalars,
                                                                   std::span<const std::int32_t> finite) {
    StepScalars& step = scalars[0];
    if (finite[0] != 0 || step.skip != kNoSkip) return;
    step.skip = kSkipNonFinite;
    step.skipped_steps += 1;
    step.adam_step -= 1;
}

__global__ void __launch_bounds__(kThreads) onebit_largest_kernel(std::span<StepScalars> scalars,
                                                                  std::span<const float> tiles) {
    if (scalars[0].skip != kNoSkip) return;
    float largest = 0.0f;
    for (std::size_t i = threadIdx.x; i < tiles.size(); i += kThreads) largest = fmaxf(largest, tiles[i]);
    largest = block_max<kThreads>(largest);
    if (threadIdx.x == 0) scalars[0].largest_update = largest;
}

__global__ void __launch_bounds__(kThreads) shadow_moment_kernel(ShadowMoment op) {
    const StepScalars& step = op.scalars[0];
    if (step.skip != kNoSkip) return;
    const float scale = step.grad_scale;
    const std::int64_t tile = std::int64_t(blockIdx.x) * kTile, end = std::int64_t(op.shadow.size());
    for (std::int64_t i = tile + int(threadIdx.x) * kSize; i < tile + kTile && i < end; i += kThreads * kSize) {
        Values shadow = read(op.shadow, i);
        const Values grad = read(op.grad, i);
        UNROLLED for (int k = 0; k < kSize; ++k) {
            const float g = grad[k] * scale;
            shadow[k] = op.beta * shadow[k] + (1.0f - op.beta) * g * g;
        }
        write(op.shadow, i, shadow);
    }
}

__global__ void __launch_bounds__(kThreads) scale_moment_kernel(std::span<float> out, std::span<const float> in,
                                                                float factor) {
    const std::int64_t tile = std::int64_t(blockIdx.x) * kTile, end = std::int64_t(out.size());
    for (std::int64_t i = tile + int(threadIdx.x) * kSize; i < tile + kTile && i < end; i += kThreads * kSize) {
        Values values = read(in, i);
        UNROLLED for (int k = 0; k < kSize; ++k) values[k] *= factor;
        write(out, i, values);
    }
}

simt::LaunchConfig tiles_of(std::size_t elements, StreamRef stream) {
    return {.grid = unsigned(ceil_div(elements, kTile)), .block = kThreads, .stream = stream};
}

}  // namespace

void onebit_admit(std::span<std::int32_t> finite, std::span<const StepScalars> scalars, StreamRef stream) {
    require_size("finite", finite, 1);
    require_size("scalars", scalars, 1);
    simt::launch<onebit_admit_kernel>({.grid = 1, .block = 1, .stream = stream}, finite, scalars);
}

void onebit_skip_non_finite(std::span<StepScalars> scalars, std::span<const std::int32_t> finite, StreamRef stream) {
    require_size("finite", finite, 1);
    require_size("scalars", scalars, 1);
    simt::launch<onebit_skip_non_finite_kernel>({.grid = 1, .block = 1, .stream = stream}, scalars, finite);
}

template <class T>
void onebit_adam(const OnebitAdam<T>& op, StreamRef stream) {
    const OnebitLayout& layout = op.layout;
    require(layout.size % 32 == 0 && layout.chunk % 32 == 0 && op.rounding.first_element % 32 == 0,
            "the elements of a bucket", layout.size,
            "a multiple of 32, and so its first element and the length of its chunks");
    if (!op.compensated.empty() || !op.error.empty() || !op.messages.empty()) {
        require_size("compensated", op.compensated, layout.size);
        require_size("error", op.error, layout.padded());
        require_size("messages", op.messages, layout.ranks * layout.message_words());
    }
    require_size("replies", op.replies, layout.ranks * layout.message_words());
    require_size("active", op.active, ceil_div(layout.padded(), 32));
    require_size("parameter", op.parameter, layout.size);
    require_size("master", op.master, layout.size);
    require_size("m", op.m, layout.size);
    require_size("v", op.v, layout.size);
    require_size("largest", op.largest, op.tiles.size());
    require_size("segments", op.segments, 1);
    require_size("scalars", op.scalars, 1);
    if (op.tiles.empty()) return;
    with_rounding<T>(op.rounding, [&]<bool Stochastic>() {
        const simt::LaunchConfig config{.grid = unsigned(op.tiles.size()), .block = kThreads, .stream = stream};
        if (op.update_space) simt::launch<onebit_adam_kernel<T, Stochastic, true>>(config, op);
        else simt::launch<onebit_adam_kernel<T, Stochastic, false>>(config, op);
    });
}

void onebit_largest(std::span<StepScalars> scalars, std::span<const float> largest, StreamRef stream) {
    require_size("scalars", scalars, 1);
    simt::launch<onebit_largest_kernel>({.grid = 1, .block = kThreads, .stream = stream}, scalars, largest);
}

void shadow_moment(const ShadowMoment& op, StreamRef stream) {
    require_size("grad", op.grad, op.shadow.size());
    require_size("scalars", op.scalars, 1);
    if (op.shadow.empty()) return;
    simt::launch<shadow_moment_kernel>(tiles_of(op.shadow.size(), stream), op);
}

void scale_moment(std::span<float> out, std::span<const float> in, float factor, StreamRef stream) {
    require_size("a moment", in, out.size());
    if (out.empty()) return;
    simt::launch<scale_moment_kernel>(tiles_of(out.size(), stream), out, in, factor);
}

template void onebit_adam(const OnebitAdam<float>&, StreamRef);
template void onebit_adam(const OnebitAdam<bf16>&, StreamRef);

}  // namespace kernels
