// adamw.cu - each block updates one contiguous tile of the flat parameter array, across tensor boundaries
#include "kernels/adamw.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "kernels/grad_norm.h"
#include "kernels/rounding.cuh"

namespace kernels {
namespace {

constexpr int kAdamWMultiple = 16;

// The elements of a block; the GPU's value is not measured yet.
constexpr int kAdamWTile = simt::gpu_geometry ? 4096 : 16384;
static_assert(kAdamWMultiple % kOptimizerSize == 0 && kAdamWTile % kOptimizerStride == 0);

// The packs of this thread start at begin, begin + kOptimizerStride, ... below end.
struct ThreadRange {
    std::int64_t begin, end;
};
__device__ inline ThreadRange thread_range(std::int64_t elements) {
    const std::int64_t tile = std::int64_t(blockIdx.x) * kAdamWTile;
    return {tile + threadIdx.x * kOptimizerSize, std::min(tile + kAdamWTile, elements)};
}

// Segments end at multiples of 16, hence never within a pack.
template <class T, bool Stochastic, bool Frozen>
__global__ void __launch_bounds__(kOptimizerThreads) adamw_kernel(AdamW<T> op) {
    const StepScalars& step = op.scalars[0];
    if (step.skip != kNoSkip) return;
    const float lr = step.learning_rate, grad_scale = step.grad_scale;
    const float first_correction = step.first_correction, second_correction = step.second_correction;

    const auto [begin, end] = thread_range(op.master.size());
    if (begin >= end) return;
    int segment = find_segment(op.segments, begin);
    Rounder<T, Stochastic> rounder(op.rounding, step.adam_step);
    for (std::int64_t i = begin; i < end; i += kOptimizerStride) {
        while (op.segments[segment].end <= i) ++segment;
        const float decay = op.segments[segment].decays ? op.weight_decay : 0.0f;
        const OptimizerFloats grad = load<kOptimizerBytes>(&op.grad[i]);
        OptimizerFloats m = load<kOptimizerBytes>(&op.m[i]), v = load<kOptimizerBytes>(&op.v[i]),
                        master = load<kOptimizerBytes>(&op.master[i]);
        for (int k = 0; k < kOptimizerSize; ++k) {
            const float g = grad[k] * grad_scale;
            m[k] = op.beta1 * m[k] + (1.0f - op.beta1) * g;
            if constexpr (Frozen) m[k] = v[k] == 0.0f ? 0.0f : m[k];
            else v[k] = op.beta2 * v[k] + (1.0f - op.beta2) * g * g;
            const float corrected = Frozen ? v[k] : v[k] * second_correction;
            const float direction = m[k] * first_correction / (sqrtf(corrected) + op.eps);
            master[k] -= lr * (direction + decay * master[k]);
        }
        store(&op.m[i], m);
        if constexpr (!Frozen) store(&op.v[i], v);
        store(&op.master[i], master);
        // in fp32 the parameter is the master weight
        if constexpr (sizeof(T) != sizeof(float)) store(&op.parameter[i], rounder.round(master.element, i));
    }
}

template <bool Stochastic>
__global__ void __launch_bounds__(kOptimizerThreads) round_parameters_kernel(RoundParameters op) {
    const auto [begin, end] = thread_range(op.master.size());
    Rounder<bf16, Stochastic> rounder(op.rounding, op.scalars[0].adam_step);
    for (std::int64_t i = begin; i < end; i += kOptimizerStride)
        store(&op.parameter[i], rounder.round(load<kOptimizerBytes>(&op.master[i]).element, i));
}

template <auto Kernel, class Op>
void launch_adamw(const Op& op, StreamRef stream) {
    simt::launch<Kernel>({.grid = unsigned(ceil_div(op.master.size(), kAdamWTile)), .block = kOptimizerThreads,
                          .stream = stream}, op);
}

void check_elements(std::size_t elements, const Rounding& rounding) {
    require(elements % kAdamWMultiple == 0, "number of elements", elements, "a multiple of 16");
    const std::int64_t first = rounding.first_element;
    require(first >= 0 && first % kAdamWMultiple == 0, "index of the first element", first, "a multiple of 16");
}

}  // namespace

template <class T>
void adamw(const AdamW<T>& op, StreamRef stream) {
    const std::size_t elements = op.master.size();
    check_elements(elements, op.rounding);
    require(op.m.size() >= elements && op.v.size() >= elements && op.grad.size() >= elements &&
                op.parameter.size() >= elements,
            "size of parameter, m, v or grad",
            std::min({op.m.size(), op.v.size(), op.grad.size(), op.parameter.size()}), "at least the size of master");
    require_size("scalars", op.scalars, 1);
    check_rounding(op.rounding, op.parameter, op.master);
    if (elements == 0) return;
    require(!op.segments.empty(), "number of segments", op.segments.size(), "at least 1");
    with_rounding<T>(op.rounding, [&]<bool Stochastic>() {
        if (op.frozen) launch_adamw<adamw_kernel<T, Stochastic, true>>(op, stream);
        else launch_adamw<adamw_kernel<T, Stochastic, false>>(op, stream);
    });
}

void round_parameters(const RoundParameters& op, StreamRef stream) {
    check_elements(op.master.size(), op.rounding);
    require_size("parameter", op.parameter, op.master.size(), "the size of master");
    require_size("scalars", op.scalars, 1);
    if (op.master.empty()) return;
    with_rounding<bf16>(op.rounding, [&]<bool Stochastic>() {
        launch_adamw<round_parameters_kernel<Stochastic>>(op, stream);
    });
}

template void adamw(const AdamW<float>&, StreamRef);
template void adamw(const AdamW<bf16>&, StreamRef);

}  // namespace kernels
