// sum_ranks.cu - one elementwise kernel that adds the contributions in the order of the ranks
#include "kernels/sum_ranks.h"

#include "kernels/base/error.h"
#include "kernels/pack.cuh"

namespace kernels {
namespace {

template <class T>
__device__ __forceinline__ const T* contribution(const SumRanks<T>& op, int rank) {
    return rank == op.rank ? op.own.data() : op.others.data() + rank * op.stride;
}

// The last block also sums the elements after the last whole pack.
template <class T, int PackBytes>
__global__ void sum_ranks_kernel(SumRanks<T> op, int tile_packs) {
    using Pack = kernels::Pack<T, PackBytes>;
    for_packs_of_tile<T, PackBytes>(op.out.size(), tile_packs, [&](std::size_t i) {
        float sum[Pack::size];
        const auto& start = load<PackBytes>(&contribution(op, 0)[i]);
        for (int k = 0; k < Pack::size; ++k) sum[k] = to_float(start[k]);
        for (int rank = 1; rank < op.ranks; ++rank) {
            const auto& x = load<PackBytes>(&contribution(op, rank)[i]);
            for (int k = 0; k < Pack::size; ++k) sum[k] += to_float(x[k]);
        }
        Pack out;
        for (int k = 0; k < Pack::size; ++k) out[k] = round_to<T>(sum[k]);
        store(&op.out[i], out);
    });
    if (blockIdx.x == gridDim.x - 1)
        for (std::size_t i = op.out.size() / Pack::size * Pack::size + threadIdx.x; i < op.out.size();
             i += blockDim.x) {
            float sum = to_float(contribution(op, 0)[i]);
            for (int rank = 1; rank < op.ranks; ++rank) sum += to_float(contribution(op, rank)[i]);
            op.out[i] = round_to<T>(sum);
        }
}

}  // namespace

template <class T>
void sum_ranks(const SumRanks<T>& op, StreamRef stream) {
    require(op.own.size() == op.out.size(), "the size of a rank's own contribution", op.own.size(),
            "the size of the sum, " + std::to_string(op.out.size()));
    require(op.ranks >= 1 && op.rank >= 0 && op.rank < op.ranks, "the rank", op.rank,
            "from 0 to the number of ranks - 1");
    require(op.stride >= std::int64_t(op.out.size()) && op.others.size() >= std::size_t(op.stride) * op.ranks,
            "the size of the other ranks' contributions", op.others.size(),
            "one row per rank, each as long as the sum");
    constexpr int kAlignment = 64;
    for (const T* array : {static_cast<const T*>(op.out.data()), op.own.data(), op.others.data()})
        require(reinterpret_cast<std::uintptr_t>(array) % kAlignment == 0, "the address of a summand", array,
                "a multiple of 64 bytes");
    require(op.stride * sizeof(T) % kAlignment == 0, "the distance between contributions", op.stride,
            "elements of a multiple of 64 bytes");
    if (op.out.empty()) return;

    constexpr int kPackBytes = simt::gpu_geometry ? kGpuPackBytes : kCpuPackBytes;
    launch_tiles<sum_ranks_kernel<T, kPackBytes>, kPackBytes>(op, op.out.size_bytes(), stream);
}

template void sum_ranks(const SumRanks<float>&, StreamRef);
template void sum_ranks(const SumRanks<bf16>&, StreamRef);

}  // namespace kernels
