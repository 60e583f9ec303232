// few_rows.cu - few_rows.h; reads each weight once
//
// On a GPU a warp computes two outputs, and issues the loads of four packs of each one's weights before it uses the
// first. On a CPU a thread reads the weights of one output after another, in memory order: one stream that the
// processor prefetches. The rows themselves come from the caches.
#include "kernels/matmul/few_rows.h"

#include <algorithm>

#include "kernels/gelu.h"
#include "kernels/matmul/check.h"
#include "kernels/reduce.cuh"
#include "kernels/widen.cuh"

namespace kernels {
namespace {

// outputs: per warp at a time. sums: partial sums of the product of a row and an output's weights; on a CPU one per
// element of a pack, as a vector.
template <class T, int Rows, int Lanes, int PackBytes>
struct FewRowsGeometry {
    static constexpr int rows = Rows, lanes = Lanes, pack_bytes = PackBytes, pack_size = PackBytes / sizeof(T);
    // On a CPU one output reads 36-38 GB/s of weights per Zen 5 core, four read 26-31 (fp32, one row).
    static constexpr int outputs = simt::gpu_geometry ? 2 : 1;
    static constexpr int sums = Lanes == 1 ? pack_size : 1;
    static constexpr int packs_under_way = 4;
    static constexpr int warps = simt::gpu_geometry ? 4 : 1;
};

template <class T, class G>
using FewRowsSums = Partial<G::sums>[G::rows][G::outputs];

// Adds the products of a pack of each row with the same pack of an output's weights.
template <class T, class G>
__device__ __forceinline__ void add_products(FewRowsSums<T, G>& sums, int output, const LinearForward<T>& op,
                                             const Pack<T, G::pack_bytes>& weight, std::size_t at) {
    UNROLLED for (int row = 0; row < G::rows; ++row) {
        const auto& in = load<G::pack_bytes>(&op.in[std::size_t(row) * op.in_channels + at]);
        UNROLLED for (int k = 0; k < G::pack_size; ++k)
            sums[row][output][k % G::sums] += to_float(in[k]) * to_float(weight[k]);
    }
}

// Four blocks per multiprocessor leave registers for all loads; without this bound some kernels spill.
template <class T, class G>
__global__ void __launch_bounds__(G::warps* G::lanes, 4)
few_rows_kernel(LinearForward<T> op, int outputs_per_block) {
    const int lane = threadIdx.x % G::lanes, warp = threadIdx.x / G::lanes;
    const int packs = op.in_channels / G::pack_size;
    const int end = std::min((int(blockIdx.x) + 1) * outputs_per_block, op.out_channels);
    // The number of outputs is a multiple of G::outputs, so a warp has all of its outputs or none.
    for (int first = int(blockIdx.x) * outputs_per_block + warp * G::outputs; first < end;
         first += G::warps * G::outputs) {
        FewRowsSums<T, G> sums{};
        const T* weights = &op.weight[std::size_t(first) * op.in_channels];
        if constexpr (G::lanes == 1) {
            for (int pack = 0; pack < packs; ++pack)
                for (int o = 0; o < G::outputs; ++o) {
                    const std::size_t at = std::size_t(pack) * G::pack_size;
                    add_products<T, G>(sums, o, op, load<G::pack_bytes>(weights + std::size_t(o) * op.in_channels + at),
                                       at);
                }
        } else {
            for (int pack = lane; pack < packs; pack += G::packs_under_way * G::lanes) {
                Pack<T, G::pack_bytes> weight[G::packs_under_way][G::outputs];
                UNROLLED for (int i = 0; i < G::packs_under_way; ++i)
                    UNROLLED for (int o = 0; o < G::outputs; ++o)
                        if (pack + i * G::lanes < packs)
                            weight[i][o] = load<G::pack_bytes>(weights + std::size_t(o) * op.in_channels +
                                                               std::size_t(pack + i * G::lanes) * G::pack_size);
                UNROLLED for (int i = 0; i < G::packs_under_way; ++i)
                    if (pack + i * G::lanes < packs)
                        UNROLLED for (int o = 0; o < G::outputs; ++o)
                            add_products<T, G>(sums, o, op, weight[i][o],
                                               std::size_t(pack + i * G::lanes) * G::pack_size);
            }
        }
        UNROLLED for (int row = 0; row < G::rows; ++row)
            UNROLLED for (int o = 0; o < G::outputs; ++o) {
                float sum = warp_sum<G::lanes>(sums[row][o].total());
                if (!op.bias.empty()) sum += to_float(op.bias[first + o]);
                if (lane == 0)
                    op.out[std::size_t(row) * op.out_channels + first + o] = round_to<T>(sum);
            }
    }
}

// On a CPU a block reads at least 64 KiB of weights; on a GPU each warp computes its outputs once.
template <class T, int Rows, int Lanes, int PackBytes>
void launch_few_rows(const LinearForward<T>& op, StreamRef stream) {
    using G = FewRowsGeometry<T, Rows, Lanes, PackBytes>;
    static_assert(16 / sizeof(T) % G::outputs == 0);
    const int step = G::warps * G::outputs;
    const int bytes = simt::gpu_geometry ? 1 : 65536, step_bytes = step * op.in_channels * int(sizeof(T));
    const int outputs_per_block = step * ceil_div(bytes, step_bytes);
    const unsigned blocks = unsigned(ceil_div(op.out_channels, outputs_per_block));
    simt::launch<few_rows_kernel<T, G>>({.grid = blocks, .block = unsigned(G::warps * Lanes), .stream = stream}, op,
                                        outputs_per_block);
}

}  // namespace

template <class T>
void few_rows_forward(const LinearForward<T>& op, StreamRef stream) {
    matmul_check::check(op);
    require(op.rows <= kFewRows, "rows of a product of few rows", op.rows, "1 to 4", "call Matmul::forward()");
    LinearForward<T> product = op;
    if (!op.pre.empty()) product.out = op.pre;
    with_row_packs<T>(op.in_channels, [&]<int Lanes, int PackBytes>() {
        static_assert(kFewRows == 4);
        if (op.rows == 1) launch_few_rows<T, 1, Lanes, PackBytes>(product, stream);
        else if (op.rows == 2) launch_few_rows<T, 2, Lanes, PackBytes>(product, stream);
        else if (op.rows == 3) launch_few_rows<T, 3, Lanes, PackBytes>(product, stream);
        else launch_few_rows<T, 4, Lanes, PackBytes>(product, stream);
    });
    if (op.pre.empty()) return;
    const std::size_t elements = std::size_t(op.rows) * op.out_channels;
    gelu_forward<T>({op.out.first(elements), op.pre.first(elements)}, stream);
}

template void few_rows_forward(const LinearForward<float>&, StreamRef);
template void few_rows_forward(const LinearForward<bf16>&, StreamRef);

}  // namespace kernels
