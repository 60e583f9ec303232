// grad_norm.cu - squared norms as one partial sum per tile, and the decisions of a step in one block
#include "kernels/grad_norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "kernels/pack.cuh"
#include "kernels/reduce.cuh"

namespace kernels {
namespace {

constexpr std::int64_t kNormTile = 16384;
// 256 threads on a GPU: not measured yet.
constexpr int kNormThreads = simt::gpu_geometry ? 256 : 1,
              kNormBytes = simt::gpu_geometry ? kGpuPackBytes : kCpuPackBytes;

// Number of squares summed in float before the sum continues in double: at most 17 roundings, a relative error of 1e-6
// in the sum of squares and half of that in the norm.
constexpr int kRun = 16;

// Block i processes tile i. Rounds: it also writes `rounded`.
template <bool Rounds>
__global__ void __launch_bounds__(kNormThreads) squared_norms_kernel(SquaredNorms op) {
    using Pack = kernels::Pack<float, kNormBytes>;
    using RoundedPack = kernels::Pack<bf16, kNormBytes / 2>;
    // Packs per run: few on a GPU, so that all loads of a thread are in flight at once.
    constexpr int kPacks = kNormThreads == 1 ? kRun : kRun / Pack::size;
    const NormTile tile = op.tiles[blockIdx.x];
    const std::int64_t packs = tile.size / Pack::size;
    const float* data = op.values.data() + tile.first;
    bf16* rounded = Rounds ? op.rounded.data() + tile.first : nullptr;
    const auto round = [](const Pack& x) {
        RoundedPack out;
        for (int k = 0; k < Pack::size; ++k) out[k] = round_to<bf16>(x[k]);
        return out;
    };

    double sum[Pack::size] = {};
    std::int64_t i = threadIdx.x;
    for (; i + (kPacks - 1) * kNormThreads < packs; i += kPacks * kNormThreads) {
        Partial<Pack::size> run;
        RoundedPack out[kPacks];  // stored after all loads: nvcc does not move a load ahead of a store
        for (int j = 0; j < kPacks; ++j) {
            const Pack x = load<kNormBytes>(&data[(i + j * kNormThreads) * Pack::size]);
            // without it GCC splits the pack into scalars: 10.3 ms for 32 million floats on one core, 3.1 with it
            #pragma omp simd
            for (int k = 0; k < Pack::size; ++k) run[k] += x[k] * x[k];
            if constexpr (Rounds) out[j] = round(x);
        }
        for (int j = 0; Rounds && j < kPacks; ++j) store(&rounded[(i + j * kNormThreads) * Pack::size], out[j]);
        #pragma omp simd
        for (int k = 0; k < Pack::size; ++k) sum[k] += run[k];
    }
    for (; i < packs; i += kNormThreads) {
        const Pack x = load<kNormBytes>(&data[i * Pack::size]);
        for (int k = 0; k < Pack::size; ++k) sum[k] += x[k] * x[k];
        if constexpr (Rounds) store(&rounded[i * Pack::size], round(x));
    }
    for (std::int64_t c = packs * Pack::size + threadIdx.x; c < tile.size; c += kNormThreads) {
        sum[0] += data[c] * data[c];
        if constexpr (Rounds) rounded[c] = round_to<bf16>(data[c]);
    }

    for (int k = 1; k < Pack::size; ++k) sum[0] += sum[k];
    const double total = block_sum<kNormThreads>(sum[0]);
    if (threadIdx.x == 0) op.partial[blockIdx.x] = total;
}

// Block i processes range i.
__global__ void __launch_bounds__(kNormThreads) range_sums_kernel(RangeSums op) {
    double sum = 0;
    for (int i = op.range_start[blockIdx.x] + int(threadIdx.x); i < op.range_start[blockIdx.x + 1]; i += kNormThreads)
        sum += op.partial[i];
    sum = block_sum<kNormThreads>(sum);
    if (threadIdx.x == 0) op.sums[blockIdx.x] = (op.accumulate ? op.sums[blockIdx.x] : 0.0) + op.factor * sum;
}

__global__ void __launch_bounds__(1) put_counts_kernel(RankSums* row, RankCounts counts) {
    row->valid_targets = double(counts.valid_targets);
    row->small_tokens = double(counts.small_tokens);
    row->small_batches = double(counts.small_batches);
}

// Of a window of losses or norms.
struct WindowSpread {
    double mean = NAN, deviation = NAN;  // NaN: the window is not full
    __device__ double z_score(double x) const { return deviation > 0 ? (x - mean) / deviation : NAN; }
};

// `values`: window.losses or window.norms. All threads of the block must call it; no thread may add to the window
// before all have read it.
__device__ WindowSpread window_spread(const OutlierWindow& window, const double (&values)[OutlierWindow::kSize]) {
    constexpr int kSize = OutlierWindow::kSize;
    if (window.count < kSize) return {};
    const auto by_age = [&](int i) { return values[(window.next + i) % kSize]; };  // oldest first
    double sum = 0;
    for (int i = threadIdx.x; i < kSize; i += kNormThreads) sum += by_age(i);
    const double mean = block_sum<kNormThreads>(sum) / kSize;
    double squares = 0;
    for (int i = threadIdx.x; i < kSize; i += kNormThreads) squares += (by_age(i) - mean) * (by_age(i) - mean);
    const double deviation = sqrt(block_sum<kNormThreads>(squares) / kSize);
    return {mean, fmax(deviation, OutlierWindow::kMinDeviation * fabs(mean))};
}

__device__ void add_step(OutlierWindow& window, double loss, double norm) {
    window.losses[window.next] = loss;
    window.norms[window.next] = norm;
    window.next = (window.next + 1) % OutlierWindow::kSize;
    if (window.count < OutlierWindow::kSize) window.count += 1;
}

// In double throughout; values for the optimizer are rounded to float once.
__device__ void decide(const StepScalarsInput& op, const WindowSpread& losses, const WindowSpread& norms) {
    StepScalars& step = op.scalars[0];
    const double loss_sum = op.totals[0].loss_sum;
    const auto valid_targets = std::int64_t(op.totals[0].valid_targets);
    // Exactly 1 when every position is a valid target, so that such a step equals one without ignored targets.
    const double kappa = valid_targets > 0 ? double(op.positions) / double(valid_targets) : NAN;
    const double norm = kappa * sqrt(op.totals[0].norm);
    const double clip = op.max_norm > 0 ? fmin(1.0, op.max_norm / (norm + 1e-6)) : 1.0;

    step.learning_rate = op.learning_rate;
    step.valid_targets = valid_targets;
    step.loss = valid_targets > 0 ? loss_sum / double(valid_targets) : NAN;
    step.grad_norm = float(norm);
    step.clip = float(clip);
    step.grad_scale = float(kappa * clip);
    step.loss_z = losses.z_score(step.loss);
    step.norm_z = norms.z_score(norm);
    step.max_loss_z = op.max_loss_z;
    step.max_norm_z = op.max_norm_z;
    step.largest_update = NAN;
    step.skip = valid_targets == 0                                   ? kSkipNoTargets
                : !(std::isfinite(norm) && std::isfinite(loss_sum))  ? kSkipNonFinite
                : is_loss_outlier(step) || is_norm_outlier(step)     ? kSkipOutlier
                                                                     : kNoSkip;
    if (step.skip != kNoSkip) {
        step.skipped_steps += 1;
        return;
    }
    add_step(op.window[0], step.loss, norm);
    step.adam_step += 1;
    step.first_correction = float(1.0 / (1.0 - pow(double(op.beta1), double(step.adam_step))));
    step.second_surplus += op.second_power - 1;
    step.second_correction =
        float(1.0 / (1.0 - pow(double(op.beta2), double(step.adam_step) + step.second_surplus)));
}

__global__ void __launch_bounds__(kNormThreads) step_scalars_kernel(StepScalarsInput op) {
    // All threads read the window before the barrier; one thread adds to it after the barrier.
    const OutlierWindow& window = op.window[0];
    const WindowSpread losses = window_spread(window, window.losses),
                       norms = window_spread(window, window.norms);
    constexpr int kDoubles = sizeof(RankSums) / sizeof(double);
    for (int i = int(threadIdx.x); i < kDoubles; i += kNormThreads) {
        double sum = 0;
        for (const RankSums& row : op.rank_sums) sum += reinterpret_cast<const double*>(&row)[i];
        reinterpret_cast<double*>(op.totals.data())[i] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) decide(op, losses, norms);
}

}  // namespace

void append_tiles(std::vector<NormTile>& tiles, std::int64_t first, std::int64_t size) {
    for (const std::int64_t end = first + size; first < end; first += kNormTile)
        tiles.push_back({first, std::min(kNormTile, end - first)});
}

void squared_norms(const SquaredNorms& op, StreamRef stream) {
    require_size("partial", op.partial, op.tiles.size(), "the number of tiles");
    require(op.rounded.empty() || op.rounded.size() == op.values.size(), "size of rounded", op.rounded.size(),
            "the size of values, or 0");
    if (op.tiles.empty()) return;
    const simt::LaunchConfig config{.grid = unsigned(op.tiles.size()), .block = kNormThreads, .stream = stream};
    if (op.rounded.empty()) simt::launch<squared_norms_kernel<false>>(config, op);
    else simt::launch<squared_norms_kernel<true>>(config, op);
}

void range_sums(const RangeSums& op, StreamRef stream) {
    require(op.range_start.size() == op.sums.size() + 1, "size of range_start", op.range_start.size(),
            "the number of sums + 1");
    if (op.sums.empty()) return;
    simt::launch<range_sums_kernel>({.grid = unsigned(op.sums.size()), .block = kNormThreads, .stream = stream}, op);
}

void put_counts(RankSums* row, const RankCounts& counts, StreamRef stream) {
    simt::launch<put_counts_kernel>({.grid = 1, .block = 1, .stream = stream}, row, counts);
}

void step_scalars(const StepScalarsInput& op, StreamRef stream) {
    require_size("scalars", op.scalars, 1);
    require_size("window", op.window, 1);
    require_size("totals", op.totals, 1);
    require(!op.rank_sums.empty(), "size of rank_sums", op.rank_sums.size(), "one row per rank");
    require(op.positions > 0, "positions", op.positions, "at least 1");
    simt::launch<step_scalars_kernel>({.grid = 1, .block = kNormThreads, .stream = stream}, op);
}

}  // namespace kernels
