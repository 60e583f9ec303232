// gradient_copy.cu - one elementwise kernel for every pair of gradient types that is copied or added
#include "kernels/gradient_copy.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/pack.cuh"

namespace kernels {
namespace {

constexpr int kCopyMultiple = 16;

// A block processes a tile of neighbouring elements, a thread kCopySize of them at a time. On a GPU every thread moves
// 16 bytes of the wider type, once: not measured yet. A CPU writes packs of one 256-bit register. Packs of twice that
// size go through the stack in halves, and re-reading them stalls (bf16 to fp32, 16 M elements, one core: 4.2 ms
// instead of 2.3); g++ splits packs of half that size into scalars (fp32 to bf16, 32 M: 23 ms instead of 5.1).
constexpr int kCopyThreads = simt::gpu_geometry ? 256 : 1, kCopyTile = simt::gpu_geometry ? 1024 : 16384;
template <class Out> constexpr int kCopySize = simt::gpu_geometry ? 4 : 32 / sizeof(Out);

template <class Out, class In>
__global__ void __launch_bounds__(kCopyThreads) gradient_copy_kernel(GradientCopy<Out, In> op) {
    constexpr int kSize = kCopySize<Out>;
    static_assert(kCopyMultiple % kSize == 0 && kCopyTile % (kCopyThreads * kSize) == 0);
    const std::int64_t elements = op.in.size(), first = std::int64_t(blockIdx.x) * kCopyTile,
                       end = std::min(first + kCopyTile, elements);
    const bool accumulate = sizeof(Out) == sizeof(float) && op.accumulate;  // false at compile time in bf16
    const auto copy = [&](std::int64_t i) {
        const auto& in = load<kSize * sizeof(In)>(&op.in[i]);
        Pack<Out, kSize * sizeof(Out)> out;
        if (accumulate) {
            const auto& before = load<kSize * sizeof(Out)>(&op.out[i]);
            for (int k = 0; k < kSize; ++k) out[k] = round_to<Out>(to_float(before[k]) + to_float(in[k]));
        } else {
            for (int k = 0; k < kSize; ++k) out[k] = round_to<Out>(to_float(in[k]));
        }
        store(&op.out[i], out);
    };
    const std::int64_t i = first + threadIdx.x * kSize;
    if constexpr (kCopyTile == kCopyThreads * kSize) {  // no loop: nvcc unrolled it and spilled registers
        if (i < end) copy(i);
    } else {
        for (std::int64_t at = i; at < end; at += kCopyThreads * kSize) copy(at);
    }
}

}  // namespace

template <class Out, class In>
void gradient_copy(const GradientCopy<Out, In>& op, StreamRef stream) {
    require(op.out.size() == op.in.size(), "the size of a gradient's copy", op.out.size(), "the size of the gradient");
    require(op.in.size() % kCopyMultiple == 0, "the size of a gradient to copy", op.in.size(), "a multiple of 16");
    require(!op.accumulate || sizeof(Out) == sizeof(float), "the type of a gradient copy to accumulate into", "bf16",
            "fp32: bf16 would round each sum");
    if (op.in.empty()) return;
    simt::launch<gradient_copy_kernel<Out, In>>(
        {.grid = unsigned(ceil_div(op.in.size(), kCopyTile)), .block = kCopyThreads, .stream = stream}, op);
}

template void gradient_copy(const GradientCopy<float, float>&, StreamRef);
template void gradient_copy(const GradientCopy<float, bf16>&, StreamRef);
template void gradient_copy(const GradientCopy<bf16, float>&, StreamRef);

}  // namespace kernels
