// adamw.cu - each block updates one contiguous tile of the flat parameter array, whatever tensors lie in it
#include "kernels/adamw.h"

#include <algorithm>
#include <cmath>

#include "kernels/grad_norm.h"
#include "kernels/pack.cuh"
#include "llmc/error.h"

namespace kernels {
namespace {

constexpr int kElementsMultiple = 16;

// The segment that holds `element`: the first whose end lies beyond it.
__device__ inline int find_segment(std::span<const DecaySegment> segments, std::int64_t element) {
    int low = 0, high = int(segments.size()) - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (segments[middle].end > element) high = middle;
        else low = middle + 1;
    }
    return low;
}

// A thread moves `Size` neighbouring elements at a time; segments end at multiples of 16, so never within them.
template <class T, int Threads, int Size, int Tile>
__global__ void __launch_bounds__(Threads) adamw_kernel(AdamW<T> op) {
    static_assert(kElementsMultiple % Size == 0 && Tile % (Threads * Size) == 0);
    constexpr int kBytes = Size * sizeof(float);
    using Floats = Pack<float, kBytes>;
    const StepScalars& step = op.scalars[0];
    if (step.skip != kNoSkip) return;
    const float rate = step.learning_rate, grad_scale = step.grad_scale;
    const float first_correction = step.first_correction, second_correction = step.second_correction;

    const std::int64_t begin = std::int64_t(blockIdx.x) * Tile + threadIdx.x * Size, elements = op.master.size();
    const std::int64_t end = std::int64_t(blockIdx.x + 1) * Tile < elements ? std::int64_t(blockIdx.x + 1) * Tile : elements;
    if (begin >= end) return;
    int segment = find_segment(op.segments, begin);
    for (std::int64_t i = begin; i < end; i += Threads * Size) {
        while (op.segments[segment].end <= i) ++segment;
        const float decay = op.segments[segment].decays ? op.weight_decay : 0.0f;
        const Floats grad = load<kBytes>(&op.grad[i]);
        Floats m = load<kBytes>(&op.m[i]), v = load<kBytes>(&op.v[i]), master = load<kBytes>(&op.master[i]);
        Pack<T, Size * sizeof(T)> parameter;
        for (int k = 0; k < Size; ++k) {
            const float g = grad[k] * grad_scale;
            m[k] = op.beta1 * m[k] + (1.0f - op.beta1) * g;
            v[k] = op.beta2 * v[k] + (1.0f - op.beta2) * g * g;
            const float direction = m[k] * first_correction / (sqrtf(v[k] * second_correction) + op.eps);
            master[k] -= rate * (direction + decay * master[k]);
            parameter[k] = round_to<T>(master[k]);
        }
        store(&op.m[i], m);
        store(&op.v[i], v);
        store(&op.master[i], master);
        if constexpr (sizeof(T) != sizeof(float)) store(&op.parameter[i], parameter);  // else the parameter is the master
    }
}

template <class T, int Threads, int Size, int Tile>
void launch_adamw(const AdamW<T>& op, Stream stream) {
    const std::size_t tiles = (op.master.size() + Tile - 1) / Tile;
    simt::launch<adamw_kernel<T, Threads, Size, Tile>>({.grid = unsigned(tiles), .block = Threads, .stream = stream}, op);
}

}  // namespace

template <class T>
void adamw(const AdamW<T>& op, Stream stream) {
    const std::size_t elements = op.master.size();
    require(elements % kElementsMultiple == 0, "number of elements", elements, "a multiple of 16");
    require(op.m.size() >= elements && op.v.size() >= elements && op.grad.size() >= elements && op.parameter.size() >= elements,
            "size of parameter, m, v or grad", std::min({op.m.size(), op.v.size(), op.grad.size(), op.parameter.size()}), "at least that of master");
    require(!op.scalars.empty(), "size of scalars", op.scalars.size(), "1");
    if constexpr (sizeof(T) == sizeof(float))
        require(static_cast<const void*>(op.parameter.data()) == op.master.data(), "parameter in fp32", "another array", "the master array itself");
    if (elements == 0) return;
    require(!op.segments.empty(), "number of segments", op.segments.size(), "at least 1");
    // On a GPU every thread moves 16 bytes of each array at a time: not measured yet.
    if constexpr (simt::gpu_geometry) launch_adamw<T, 256, 4, 4096>(op, stream);
    else launch_adamw<T, 1, 16, 16384>(op, stream);
}

template void adamw(const AdamW<float>&, Stream);
template void adamw(const AdamW<bf16>&, Stream);

}  // namespace kernels
