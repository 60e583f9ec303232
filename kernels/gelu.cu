// gelu.cu - elementwise kernels: the tanh form of GELU, computed with one exponential
#include "kernels/gelu.h"

#include "kernels/base/error.h"
#include "kernels/math.cuh"
#include "kernels/pack.cuh"

namespace kernels {
namespace {

constexpr float kTwiceRootTwoOverPi = 1.595769122f, kCubic = 0.044715f;

// With u = sqrt(2/pi) (x + 0.044715 x^3):  0.5 (1 + tanh u) = 1 / (1 + exp(-2u))
// Unlike 1 + tanh, the right-hand side loses no digits for negative x.
__device__ __forceinline__ float gate(float x) {
    return __fdividef(1.0f, 1.0f + fast_exp(-kTwiceRootTwoOverPi * (x + kCubic * x * x * x)));
}

__device__ __forceinline__ float gelu(float x) { return x * gate(x); }

// d (x g) / dx = g + x g (1 - g) 2 du/dx
__device__ __forceinline__ float gelu_slope(float x) {
    const float g = gate(x);
    return g + x * g * (1.0f - g) * (kTwiceRootTwoOverPi * (1.0f + 3.0f * kCubic * x * x));
}

template <class T, int PackBytes>
__global__ void gelu_forward_kernel(GeluForward<T> op, int tile_packs) {
    for_packs_of_tile<T, PackBytes>(op.in.size(), tile_packs, [&](std::size_t i) {
        const auto& in = load<PackBytes>(&op.in[i]);
        Pack<T, PackBytes> out;
        for (int k = 0; k < out.size; ++k) out[k] = round_to<T>(gelu(to_float(in[k])));
        store(&op.out[i], out);
    });
}

template <class T, int PackBytes>
__global__ void gelu_backward_kernel(GeluBackward<T> op, int tile_packs) {
    for_packs_of_tile<T, PackBytes>(op.in.size(), tile_packs, [&](std::size_t i) {
        const auto& in = load<PackBytes>(&op.in[i]);
        const auto& dout = load<PackBytes>(&op.dout[i]);
        Pack<T, PackBytes> din;
        for (int k = 0; k < din.size; ++k) din[k] = round_to<T>(to_float(dout[k]) * gelu_slope(to_float(in[k])));
        store(&op.din[i], din);
    });
}

// Calls launch.template operator()<PackBytes>() unless the input is empty.
template <class T, class Launch>
void with_gelu_packs(std::span<const T> in, Launch&& launch) {
    require(in.size_bytes() % 16 == 0, "the size of GELU's input", in.size(), "elements of a multiple of 16 bytes");
    if (in.empty()) return;
    if constexpr (simt::gpu_geometry) launch.template operator()<kGpuPackBytes>();
    else if (in.size_bytes() % kCpuPackBytes == 0) launch.template operator()<kCpuPackBytes>();
    else launch.template operator()<16>();
}

}  // namespace

template <class T>
void gelu_forward(const GeluForward<T>& op, StreamRef stream) {
    require(op.out.size() == op.in.size(), "the size of GELU's output", op.out.size(), "the size of its input");
    with_gelu_packs(op.in, [&]<int PackBytes>() {
        launch_tiles<gelu_forward_kernel<T, PackBytes>, PackBytes>(op, op.in.size_bytes(), stream);
    });
}

template <class T>
void gelu_backward(const GeluBackward<T>& op, StreamRef stream) {
    require(op.din.size() == op.in.size(), "the size of GELU's input gradient", op.din.size(), "the size of its input");
    require(op.dout.size() == op.in.size(), "the size of GELU's output gradient", op.dout.size(),
            "the size of its input");
    with_gelu_packs(op.in, [&]<int PackBytes>() {
        launch_tiles<gelu_backward_kernel<T, PackBytes>, PackBytes>(op, op.in.size_bytes(), stream);
    });
}

template void gelu_forward(const GeluForward<float>&, StreamRef);
template void gelu_forward(const GeluForward<bf16>&, StreamRef);
template void gelu_backward(const GeluBackward<float>&, StreamRef);
template void gelu_backward(const GeluBackward<bf16>&, StreamRef);

}  // namespace kernels
