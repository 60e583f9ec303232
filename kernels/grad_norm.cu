// grad_norm.cu - the squared norm as a fixed number of partial sums, and the decisions of a step in one block
#include "kernels/grad_norm.h"

#include <cmath>

#include "kernels/pack.cuh"
#include "kernels/reduce.cuh"
#include "llmc/error.h"

namespace kernels {
namespace {

// As many as fill a large GPU with 256 threads each, and enough to keep the cores of a CPU evenly busy. A constant, so that the order of additions
// depends on nothing but the number of elements.
constexpr int kPartials = 1024;

// Squares that are summed in float before they go on in double: at most 17 roundings, 1e-6 of the sum of squares and half that of the norm.
constexpr int kRun = 16;

// Block i takes the i-th contiguous share of the packs.
template <int Threads, int PackBytes>
__global__ void __launch_bounds__(Threads) squared_norm_kernel(std::span<double> partial, std::span<const float> values) {
    using Pack = kernels::Pack<float, PackBytes>;
    // Packs of one run: a GPU's thread takes few, so that all its loads are under way at once.
    constexpr int kPacks = Threads == 1 ? kRun : kRun / Pack::size;
    const std::int64_t packs = values.size() / Pack::size, share = (packs + gridDim.x - 1) / gridDim.x;
    const std::int64_t end = packs < share * (blockIdx.x + 1) ? packs : share * (blockIdx.x + 1);
    const float* data = values.data();

    double sum[Pack::size] = {};
    std::int64_t i = share * blockIdx.x + threadIdx.x;
    for (; i + (kPacks - 1) * Threads < end; i += kPacks * Threads) {
        Partial<Pack::size> run;
        for (int j = 0; j < kPacks; ++j) {
            const Pack x = load<PackBytes>(&data[(i + j * Threads) * Pack::size]);
            #pragma omp simd  // else GCC takes the pack apart into scalars: 10.3 ms for 32 million floats on one core, 3.1 with it
            for (int k = 0; k < Pack::size; ++k) run[k] += x[k] * x[k];
        }
        #pragma omp simd
        for (int k = 0; k < Pack::size; ++k) sum[k] += run[k];
    }
    for (; i < end; i += Threads) {
        const Pack x = load<PackBytes>(&data[i * Pack::size]);
        for (int k = 0; k < Pack::size; ++k) sum[k] += x[k] * x[k];
    }
    // What does not fill a pack belongs to the last block.
    if (blockIdx.x == gridDim.x - 1)
        for (std::size_t c = packs * Pack::size + threadIdx.x; c < values.size(); c += Threads) sum[0] += data[c] * data[c];

    for (int k = 1; k < Pack::size; ++k) sum[0] += sum[k];
    const double total = block_sum<Threads>(sum[0]);
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

// In double throughout; what the optimizer reads is rounded to float once.
__device__ void decide(const StepScalarsInput& op, double squared_norm) {
    StepScalars& step = op.scalars[0];
    const double loss_sum = op.loss_sum[0];
    // Exactly 1 when every position is a valid target, so that such a step equals one that knows no ignored targets.
    const double kappa = op.valid_targets > 0 ? double(op.positions) / double(op.valid_targets) : NAN;
    const double norm = kappa * sqrt(squared_norm);
    const double clip = op.max_norm > 0 ? fmin(1.0, op.max_norm / (norm + 1e-6)) : 1.0;

    step.learning_rate = op.learning_rate;
    step.valid_targets = op.valid_targets;
    step.loss = op.valid_targets > 0 ? loss_sum / double(op.valid_targets) : NAN;
    step.grad_norm = float(norm);
    step.clip = float(clip);
    step.grad_scale = float(kappa * clip);
    step.skip = op.valid_targets == 0 ? kSkipNoTargets : std::isfinite(norm) && std::isfinite(loss_sum) ? kNoSkip : kSkipNonFinite;
    if (step.skip != kNoSkip) {
        step.skipped_steps += 1;
        return;
    }
    step.adam_step += 1;
    step.first_correction = float(1.0 / (1.0 - pow(double(op.beta1), double(step.adam_step))));
    step.second_correction = float(1.0 / (1.0 - pow(double(op.beta2), double(step.adam_step))));
}

template <int Threads>
__global__ void __launch_bounds__(Threads) step_scalars_kernel(StepScalarsInput op) {
    double sum = 0;
    for (std::size_t i = threadIdx.x; i < op.squared_partial.size(); i += Threads) sum += op.squared_partial[i];
    sum = block_sum<Threads>(sum);
    if (threadIdx.x == 0) decide(op, sum);
}

}  // namespace

int squared_norm_partials() { return kPartials; }

void squared_norm(std::span<double> partial, std::span<const float> values, Stream stream) {
    require(partial.size() >= std::size_t(kPartials), "size of partial", partial.size(), "at least squared_norm_partials()");
    // 256 threads with 16-byte packs on a GPU: not measured yet.
    constexpr int kThreads = simt::gpu_geometry ? 256 : 1, kPackBytes = simt::gpu_geometry ? kGpuPackBytes : kCpuPackBytes;
    simt::launch<squared_norm_kernel<kThreads, kPackBytes>>({.grid = kPartials, .block = kThreads, .stream = stream}, partial, values);
}

void step_scalars(const StepScalarsInput& op, Stream stream) {
    require(!op.scalars.empty() && !op.loss_sum.empty(), "size of scalars or loss_sum", 0, "1");
    require(op.positions > 0, "positions", op.positions, "at least 1");
    require(op.valid_targets >= 0 && op.valid_targets <= op.positions, "valid targets", op.valid_targets, "between 0 and the number of positions");
    constexpr int kThreads = simt::gpu_geometry ? 256 : 1;
    simt::launch<step_scalars_kernel<kThreads>>({.grid = 1, .block = kThreads, .stream = stream}, op);
}

}  // namespace kernels
