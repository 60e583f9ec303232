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
// As in adamw.cu: 16 bytes of the wider type per thread on a GPU, where the values are not measured yet.
constexpr int kMuonThreads = simt::gpu_geometry ? 256 : 1, kMuonSize = simt::gpu_geometry ? 4 : 16;
constexpr int kMuonBytes = kMuonSize * sizeof(float);
using MuonFloats = Pack<float, kMuonBytes>;
template <class T> using MuonPack = Pack<T, kMuonSize * sizeof(T)>;

// Calls use(offset in the tile) for the packs of this thread.
template <class Use> __device__ void for_muon_packs(const MuonTile& tile, Use&& use) {
    for (std::int32_t i = std::int32_t(threadIdx.x) * kMuonSize; i < tile.size; i += kMuonThreads * kMuonSize) use(i);
}

template <class T>
__global__ void __launch_bounds__(kMuonThreads) muon_momentum_kernel(MuonMomentum<T> op) {
    const StepScalars& step = op.scalars[0];
    const MuonTile tile = op.tiles[blockIdx.x];
    const float mu = op.mu, rest = 1.0f - op.mu, grad_scale = step.grad_scale;
    double sum[kMuonSize] = {};
    if (step.skip == kNoSkip)
        for_muon_packs(tile, [&](std::int32_t i) {
            const MuonFloats grad = load<kMuonBytes>(&op.grad[(op.packed_grad ? tile.first : tile.flat) + i]);
            MuonFloats m = load<kMuonBytes>(&op.momentum[tile.first + i]);
            MuonPack<T> direction;
            for (int k = 0; k < kMuonSize; ++k) {
                const float g = grad[k] * grad_scale;
                m[k] = mu * m[k] + rest * g;
                const float u = rest * g + mu * m[k];
                direction[k] = round_to<T>(u);
                sum[k] += double(u) * double(u);
            }
            store(&op.momentum[tile.first + i], m);
            store(&op.direction[tile.first + i], direction);
        });
    for (int k = 1; k < kMuonSize; ++k) sum[0] += sum[k];
    const double total = block_sum<kMuonThreads>(sum[0]);
    if (threadIdx.x == 0) op.partial[blockIdx.x] = total;
}

template <class T>
__global__ void __launch_bounds__(kMuonThreads) muon_normalize_kernel(MuonNormalize<T> op) {
    const MuonTile tile = op.tiles[blockIdx.x];
    const double norm = sqrt(op.squared_norm[tile.matrix]);
    const float factor = float(1.0 / (norm > 1e-7 ? norm : 1e-7));
    for_muon_packs(tile, [&](std::int32_t i) {
        MuonPack<T> x = load<kMuonSize * sizeof(T)>(&op.direction[tile.first + i]);
        for (int k = 0; k < kMuonSize; ++k) x[k] = round_to<T>(to_float(x[k]) * factor);
        store(&op.direction[tile.first + i], x);
    });
}

template <class T, bool Stochastic>
__global__ void __launch_bounds__(kMuonThreads) muon_update_kernel(MuonUpdate<T> op) {
    const StepScalars& step = op.scalars[0];
    if (step.skip != kNoSkip) return;
    const MuonTile tile = op.tiles[blockIdx.x];
    const float lr = step.learning_rate * op.learning_rate_factor, kept = 1.0f - lr * op.weight_decay;
    const float factor = lr * op.scale;
    Rounder<T, Stochastic, kMuonSize, kMuonThreads> rounder(op.rounding, step.adam_step);
    for_muon_packs(tile, [&](std::int32_t i) {
        const std::int64_t at = tile.flat + i, at_master = op.packed_master ? tile.first + i : at;
        const MuonPack<T> direction = load<kMuonSize * sizeof(T)>(&op.direction[tile.first + i]);
        MuonFloats master = load<kMuonBytes>(&op.master[at_master]);
        for (int k = 0; k < kMuonSize; ++k) master[k] = kept * master[k] - factor * to_float(direction[k]);
        store(&op.master[at_master], master);
        if constexpr (sizeof(T) != sizeof(float)) store(&op.parameter[at], rounder.round(master.element, at));
    });
}

template <auto Kernel, class Op> void launch_muon(const Op& op, StreamRef stream) {
    if (op.tiles.empty()) return;
    simt::launch<Kernel>({.grid = unsigned(op.tiles.size()), .block = kMuonThreads, .stream = stream}, op);
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
    if constexpr (sizeof(T) == sizeof(float)) {
        require(!op.rounding.stochastic, "rounding of fp32 parameters", "stochastic",
                "none: they are the master weights");
        require(op.parameter.data() == op.master.data() && !op.packed_master, "parameter in fp32",
                "an array other than master", "master itself");
        launch_muon<muon_update_kernel<T, false>>(op, stream);
    } else if (op.rounding.stochastic) {
        launch_muon<muon_update_kernel<T, true>>(op, stream);
    } else {
        launch_muon<muon_update_kernel<T, false>>(op, stream);
    }
}

template void muon_momentum(const MuonMomentum<float>&, StreamRef);
template void muon_momentum(const MuonMomentum<bf16>&, StreamRef);
template void muon_normalize(const MuonNormalize<float>&, StreamRef);
template void muon_normalize(const MuonNormalize<bf16>&, StreamRef);
template void muon_update(const MuonUpdate<float>&, StreamRef);
template void muon_update(const MuonUpdate<bf16>&, StreamRef);

}  // namespace kernels
