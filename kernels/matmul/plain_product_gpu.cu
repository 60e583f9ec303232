// plain_product_gpu.cu - plain_product.h: one thread per element
#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/matmul/plain_product.h"
#include "kernels/pack.cuh"

namespace kernels {
namespace {

template <class T, class Out>
__global__ void plain_product_kernel(PlainProduct<T, Out> op) {
    const std::int64_t element = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (element >= std::int64_t(op.m) * op.n) return;
    const std::int64_t i = element / op.n, j = element % op.n;
    float sum = 0.0f;
    for (std::int64_t k = 0; k < op.k; ++k)
        sum += to_float(op.a.at[i * op.a.row + k * op.a.column]) * to_float(op.b.at[k * op.b.row + j * op.b.column]);
    sum *= op.alpha;
    if (op.bias) sum += to_float(op.bias[j]);
    if (op.addend) sum += op.beta * to_float(op.addend[element]);
    op.out[std::size_t(element)] = round_to<Out>(sum);
}

}  // namespace

template <class T, class Out>
void plain_product(const PlainProduct<T, Out>& op, StreamRef stream) {
    constexpr int kThreads = 256;
    require(op.m > 0 && op.n > 0 && op.k > 0, "the smallest size of a matrix product", std::min({op.m, op.n, op.k}),
            "at least 1");
    const std::size_t elements = std::size_t(op.m) * op.n;
    require_size("out", op.out, elements, "m * n");
    const std::size_t blocks = ceil_div(elements, kThreads);
    require(blocks <= 0x7fffffff, "the elements of a matrix product", elements, "at most 2^31 blocks of 256");
    simt::launch<plain_product_kernel<T, Out>>({.grid = unsigned(blocks), .block = kThreads, .stream = stream}, op);
}

template void plain_product(const PlainProduct<float, float>&, StreamRef);
template void plain_product(const PlainProduct<bf16, bf16>&, StreamRef);
template void plain_product(const PlainProduct<bf16, float>&, StreamRef);

}  // namespace kernels
