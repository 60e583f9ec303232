// muon.cu - each block processes one tile of one matrix
#include "kernels/muon.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "kernels/grad_norm.h"
#include "kernels/reduce.cuh"
#include "kernels/rounding.cuh"

namespace kernels {
namespace {

constexpr std::int64_t kMuonTile = 16384;
template <class T> using MuonPack = Pack<T, kOptimizerSize * sizeof(T)>;

// Calls use(offset in the tile) for the packs of this thread.
template <class Use> __device__ void for_muon_packs(const MuonTile& tile, Use&& use) {
    for (int i = int(threadIdx.x) * kOptimizerSize; i < tile.size; i += kOptimizerStride) use(i);
}

template <class T>
__global__ void __launch_bounds__(kOptimizerThreads) muon_momentum_kernel(MuonMomentum<T> op) {
    const StepScalars& step = op.scalars[0];
    const MuonTile tile = op.tiles[blockIdx.x];
    const float mu = op.mu, rest = 1.0f - op.mu, grad_scale = step.grad_scale;
    double sum[kOptimizerSize] = {};
    if (step.skip == kNoSkip)
        for_muon_packs(tile, [&](int i) {
            const OptimizerFloats grad = load<kOptimizerBytes>(&op.grad[(op.packed_grad ? tile.first : tile.flat) + i]);
            OptimizerFloats m = load<kOptimizerBytes>(&op.momentum[tile.first + i]);
            MuonPack<T> direction;
            for (int k = 0; k < kOptimizerSize; ++k) {
                const float g = grad[k] * grad_scale;
                m[k] = mu * m[k] + rest * g;
                const float u = rest * g + mu * m[k];
                direction[k] = round_to<T>(u);
                sum[k] += double(u) * double(u);
            }
            store(&op.momentum[tile.first + i], m);
            store(&op.direction[tile.first + i], direction);
        });
    for (int k = 1; k < kOptimizerSize; ++k) sum[0] += sum[k];
    const double total = block_sum<kOptimizerThreads>(sum[0]);
    if (threadIdx.x == 0) op.partial[blockIdx.x] = total;
}

template <class T>
__global__ void __launch_bounds__(kOptimizerThreads) muon_normalize_kernel(MuonNormalize<T> op) {
    const MuonTile tile = op.tiles[blockIdx.x];
    const double norm = sqrt(op.squared_norm[tile.matrix]);
    const float factor = float(1.0 / (norm > 1e-7 ? norm : 1e-7));
    for_muon_packs(tile, [&](int i) {
        MuonPack<T> x = load<kOptimizerSize * sizeof(T)>(&op.direction[tile.first + i]);
        for (int k = 0; k < kOptimizerSize; ++k) x[k] = round_to<T>(to_float(x[k]) * factor);
        store(&op.direction[tile.first + i], x);
    });
}

template <class T, bool Stochastic>
__global__ void __launch_bounds__(kOptimizerThreads) muon_update_kernel(MuonUpdate<T> op) {
    const StepScalars& step = op.scalars[0];
    if (step.skip != kNoSkip) return;
    const MuonTile tile = op.tiles[blockIdx.x];
    const float lr = step.learning_rate * op.learning_rate_factor, kept = 1.0f - lr * op.weight_decay;
    const float factor = lr * op.scale;
    Rounder<T, Stochastic> rounder(op.rounding, step.adam_step);
    for_muon_packs(tile, [&](int i) {
        const std::int64_t at = tile.flat + i, at_master = op.packed_master ? tile.first + i : at;
        const MuonPack<T> direction = load<kOptimizerSize * sizeof(T)>(&op.direction[tile.first + i]);
        OptimizerFloats master = load<kOptimizerBytes>(&op.master[at_master]);
        for (int k = 0; k < kOptimizerSize; ++k) {
            const float o = to_float(direction[k]);
            master[k] = (op.cautious && o * master[k] < 0 ? 1.0f : kept) * master[k] - factor * o;
        }
        store(&op.master[at_master], master);
        if constexpr (sizeof(T) != sizeof(float)) store(&op.parameter[at], rounder.round(master.element, at));
    });
}

template <auto Kernel, class Op> void launch_muon(const Op& op, StreamRef stream) {
    if (op.tiles.empty()) return;
    simt::launch<Kernel>({.grid = unsigned(op.tiles.size()), .block = kOptimizerThreads, .stream = stream}, op);
}

}  // namespace

void append_muon_tiles(std::vector<MuonTile>& tiles, std::int32_t matrix, std::int64_t first, std::int64_t flat,
                       std::int64_t size) {
    for (std::int64_t i = 0; i < size; i += kMuonTile)
        tiles.push_back({.first = first + i, .flat = flat + i, .size = std::int32_t(std::min(kMuonTile, size - i)),
                         .matrix = matrix});
}

template <class T> void muon_momentum(const MuonMomentum<T>& op, StreamRef stream) {
    require_size("partial", op.partial, op.tiles.size(), "the number of tiles");
    require_size("scalars", op.scalars, 1);
    launch_muon<muon_momentum_kernel<T>>(op, stream);
}

template <class T> void muon_normalize(const MuonNormalize<T>& op, StreamRef stream) {
    launch_muon<muon_normalize_kernel<T>>(op, stream);
}

template <class T> void muon_update(const MuonUpdate<T>& op, StreamRef stream) {
    require_size("scalars", op.scalars, 1);
    require(op.rounding.first_element == 0, "first element of the rounding", op.rounding.first_element, "0");
    check_rounding(op.rounding, op.parameter, op.master);
    require(sizeof(T) != sizeof(float) || !op.packed_master, "packed_master in fp32", "true", "false");
    with_rounding<T>(op.rounding, [&]<bool Stochastic>() {
        launch_muon<muon_update_kernel<T, Stochastic>>(op, stream);
    });
}

template void muon_momentum(const MuonMomentum<float>&, StreamRef);
template void muon_momentum(const MuonMomentum<bf16>&, StreamRef);
template void muon_normalize(const MuonNormalize<float>&, StreamRef);
template void muon_normalize(const MuonNormalize<bf16>&, StreamRef);
template void muon_update(const MuonUpdate<float>&, StreamRef);
template void muon_update(const MuonUpdate<bf16>&, StreamRef);

}  // namespace kernels
