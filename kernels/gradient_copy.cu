// gradient_copy.cu - one elementwise kernel for every pair of gradient types that is copied or added
#include "kernels/gradient_copy.h"

#include "kernels/base/error.h"
#include "kernels/pack.cuh"

namespace kernels {
namespace {

constexpr int kCopyMultiple = 16;

// A block processes a tile of neighbouring elements, a thread `Size` of them at a time.
template <class Out, class In, int Threads, int Size, int Tile>
__global__ void __launch_bounds__(Threads) gradient_copy_kernel(GradientCopy<Out, In> op) {
    static_assert(kCopyMultiple % Size == 0 && Tile % (Threads * Size) == 0);
    const std::int64_t elements = op.in.size(), first = std::int64_t(blockIdx.x) * Tile,
                       end = first + Tile < elements ? first + Tile : elements;
    const bool accumulate = sizeof(Out) == sizeof(float) && op.accumulate;  // false at compile time in bf16
    const auto copy = [&](std::int64_t i) {
        const auto& in = load<Size * sizeof(In)>(&op.in[i]);
        Pack<Out, Size * sizeof(Out)> out;
        if (accumulate) {
            const auto& before = load<Size * sizeof(Out)>(&op.out[i]);
            for (int k = 0; k < Size; ++k) out[k] = round_to<Out>(to_float(before[k]) + to_float(in[k]));
        } else {
            for (int k = 0; k < Size; ++k) out[k] = round_to<Out>(to_float(in[k]));
        }
        store(&op.out[i], out);
    };
    const std::int64_t i = first + threadIdx.x * Size;
    if constexpr (Tile == Threads * Size) {  // no loop: nvcc unrolled it and spilled registers
        if (i < end) copy(i);
    } else {
        for (std::int64_t at = i; at < end; at += Threads * Size) copy(at);
    }
}

template <class Out, class In, int Threads, int Size, int Tile>
void launch_copy(const GradientCopy<Out, In>& op, StreamRef stream) {
    const std::size_t tiles = ceil_div(op.in.size(), Tile);
    simt::launch<gradient_copy_kernel<Out, In, Threads, Size, Tile>>({.grid = unsigned(tiles), .block = Threads,
                                                                      .stream = stream}, op);
}

}  // namespace

template <class Out, class In>
void gradient_copy(const GradientCopy<Out, In>& op, StreamRef stream) {
    require(op.out.size() == op.in.size(), "the size of a gradient's copy", op.out.size(), "the size of the gradient");
    require(op.in.size() % kCopyMultiple == 0, "the size of a gradient to copy", op.in.size(), "a multiple of 16");
    require(!op.accumulate || sizeof(Out) == sizeof(float), "the type of a gradient copy to accumulate into", "bf16",
            "fp32: bf16 would round each sum");
    if (op.in.empty()) return;
    // On a GPU every thread moves 16 bytes of the wider type at a time: not measured yet.
    if constexpr (simt::gpu_geometry) launch_copy<Out, In, 256, 4, 1024>(op, stream);
    // A CPU writes packs of one 256-bit register. Packs of twice that size go through the stack in halves, and
    // re-reading them stalls (bf16 to fp32, 16 M elements, one core: 4.2 ms instead of 2.3); g++ splits packs of half
    // that size into scalars (fp32 to bf16, 32 M: 23 ms instead of 5.1).
    else launch_copy<Out, In, 1, 32 / sizeof(Out), 16384>(op, stream);
}

template void gradient_copy(const GradientCopy<float, float>&, StreamRef);
template void gradient_copy(const GradientCopy<float, bf16>&, StreamRef);
template void gradient_copy(const GradientCopy<bf16, float>&, StreamRef);

}  // namespace kernels
