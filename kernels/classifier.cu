// classifier.cu - one block per row. The first pass over the logits computes maximum and sum together (online softmax):
// the sum of exponentials is relative to the running maximum and is rescaled when the maximum grows. The second pass
// replaces the logits by their gradients, or writes these in fp8.
#include "kernels/classifier.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/base/error.h"
#include "kernels/fp8.cuh"
#include "kernels/math.cuh"
#include "kernels/pack.cuh"
#include "kernels/ptx.cuh"
#include "kernels/reduce.cuh"
#include "kernels/widen.cuh"

namespace kernels {
namespace {

// The gradients are read again only after all rows of this call (one chunk of the LM head's rows) are written, so on a
// GPU they should not evict the logits of other rows from the L2 cache.
template <class T, int Bytes>
__device__ void store_streaming(T* address, const Pack<T, Bytes>& pack) {
    if constexpr (Bytes == sizeof(int4)) {
        simt::check_aligned(address, Bytes);
        __stcs(reinterpret_cast<int4*>(address), std::bit_cast<int4>(pack));
    } else {
        store(address, pack);
    }
}

// The exponentials of a row, exp(logit - maximum). Binary, on a GPU: by exp2, with maxima in units of ln(2) (scaled()):
// one FFMA for the exponent and one MUFU.EX2, where fast_exp needs FADD, FMUL and MUFU, plus three instructions for
// results below 2^-126. The scaled maximum is rounded; sums, gradients and loss all use the rounded value, so its
// rounding error cancels.
template <bool Binary>
struct PowersOf {
    static constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
    __device__ static float scaled(float logit) { return Binary ? logit * kLog2E : logit; }
    __device__ static float power(float logit, float maximum) {
        if constexpr (Binary) return fast_exp2(fmaf(logit, kLog2E, -maximum));
        else return fast_exp(logit - maximum);
    }
    __device__ static float ratio(float from, float to) {
        if constexpr (Binary) return fast_exp2(from - to);
        else return fast_exp(from - to);
    }
    __device__ static float log_sum(float sum, float maximum) {
        if constexpr (Binary) return fmaf(maximum, kLn2, logf(sum));
        else return logf(sum) + maximum;
    }
    // Of large logits, the logarithm of the sum would be lost in the maximum: it is added to the difference, which is
    // exact if the target has the maximum.
    __device__ static float loss(float sum, float maximum, float target) {
        constexpr float kLarge = 0x1p14f;
        if (fabsf(maximum) < kLarge) return log_sum(sum, maximum) - target;
        if constexpr (Binary) return logf(sum) - kLn2 * fmaf(target, kLog2E, -maximum);
        else return logf(sum) + (maximum - target);
    }
};
using Powers = PowersOf<simt::gpu_geometry>;

// A thread's running statistics of its part of the row: the scaled maximum, and the sums of exponentials relative to
// it, one per element of the pack. The maximum starts at the lowest finite number, so that logits of -infinity and
// threads without elements need no special case.
template <class T, int PackBytes>
struct Online {
    static constexpr int kSize = PackBytes / sizeof(T);
    float maximum = -FLT_MAX;
    Partial<kSize> sum;

    // Raises the maximum and returns the factor that rescales the sums so far.
    __device__ float raise(float to) {
        const float before = maximum;
        maximum = before < to ? to : before;
        return Powers::ratio(before, maximum);
    }
    // Adds the logits of pack(0), ..., pack(packs - 1). Two passes: the first finds their maximum; the second, from
    // registers or the L1 cache, adds exponentials. So each logit costs one exponential, and each call one more, to
    // rescale. `omp simd` here and below keeps GCC from splitting the pack into scalars before it vectorizes: 6.7 ms
    // without, 3.8 with (256 x 50304 fp32, losses only, one core).
    template <class Load>
    __device__ void add_run(int packs, Load pack) {
        float largest[kSize];
        for (float& x : largest) x = -FLT_MAX;
        for (int j = 0; j < packs; ++j) {
            const auto logits = pack(j);
            #pragma omp simd
            for (int k = 0; k < kSize; ++k)
                largest[k] = to_float(logits[k]) > largest[k] ? to_float(logits[k]) : largest[k];
        }
        const float rescale = raise(Powers::scaled(greatest(largest)));
        Partial<kSize> run;
        for (int j = 0; j < packs; ++j) {
            const auto logits = pack(j);
            #pragma omp simd
            for (int k = 0; k < kSize; ++k) run[k] += Powers::power(to_float(logits[k]), maximum);
        }
        for (int k = 0; k < kSize; ++k) sum[k] = sum[k] * rescale + run[k];
    }
    // The same for `Packs` packs in registers, for a GPU. fmaxf, like add_run, ignores NaN; the sum propagates it.
    template <int Packs>
    __device__ void add_packs(const Pack<T, PackBytes> (&pack)[Packs]) {
        float logits[Packs][kSize], largest = -FLT_MAX;
        for (int j = 0; j < Packs; ++j) {
            widen(pack[j], logits[j]);
            for (int k = 0; k < kSize; ++k) largest = fmaxf(largest, logits[j][k]);
        }
        const float rescale = raise(Powers::scaled(largest));
        for (int k = 0; k < kSize; ++k) {
            sum[k] *= rescale;
            for (int j = 0; j < Packs; ++j) sum[k] += Powers::power(logits[j][k], maximum);
        }
    }

    // The maximum of x, by pairwise halving, which vectorises.
    __device__ static float greatest(float (&x)[kSize]) {
        for (int half = kSize / 2; half > 0; half /= 2)
            for (int k = 0; k < half; ++k) x[k] = x[k] > x[k + half] ? x[k] : x[k + half];
        return x[0];
    }
};

// Loads the pack that holds the end of the vocabulary; padding becomes -infinity, which adds 0 to the sum.
template <int PackBytes, class T>
__device__ Pack<T, PackBytes> load_below(const T* address, int columns) {
    Pack<T, PackBytes> pack;
    for (int k = 0; k < pack.size; ++k) pack[k] = k < columns ? address[k] : round_to<T>(-INFINITY);
    return pack;
}

template <class Gradient> __device__ __forceinline__ Gradient rounded_gradient(float x) {
    if constexpr (is_fp8<Gradient>) return round_to_fp8<Gradient>(x);
    else return round_to<Gradient>(x);
}
// The gradients of logits, without the target's -1.
template <class Gradient, class T, int Bytes>
__device__ __forceinline__ auto gradients_of(const Pack<T, Bytes>& pack, float maximum, float factor) {
    constexpr int kSize = Pack<T, Bytes>::size;
    if constexpr (simt::gpu_geometry) {
        float x[kSize];
        widen(pack, x);
        for (float& each : x) each = Powers::power(each, maximum) * factor;
        if constexpr (is_fp8<Gradient>) return fp8_pack<Gradient>(x);
        else return rounded_pack<Gradient>(x);
    } else {
        Pack<Gradient, kSize * sizeof(Gradient)> gradients;
        #pragma omp simd
        for (int k = 0; k < kSize; ++k)
            gradients[k] = rounded_gradient<Gradient>(Powers::power(to_float(pack[k]), maximum) * factor);
        return gradients;
    }
}

// A thread processes packs threadIdx.x, threadIdx.x + Threads, ... of the row, RunPacks at a time. A multiprocessor
// holds two blocks, so that one computes while the other waits at a barrier.
// Gradient: T, which replaces the logits, or e5m2.
template <class T, class Gradient, int Threads, int PackBytes, int RunPacks>
__global__ void __launch_bounds__(Threads, Threads > 512 ? 2 : 1) classifier_kernel(Classifier<T> op) {
    using Pack = kernels::Pack<T, PackBytes>;
    constexpr bool kFp8 = is_fp8<Gradient>;
    T* row = &op.logits[std::size_t(blockIdx.x) * op.padded_vocabulary];
    const int target = op.targets[blockIdx.x];
    // Gradients are written in units of at least 16 bytes.
    constexpr int kUnit = kFp8 && Pack::size < 16 ? 16 : Pack::size;
    using Unit = kernels::Pack<T, kUnit * sizeof(T)>;
    using Gradients = kernels::Pack<Gradient, kUnit * sizeof(Gradient)>;
    const int units = op.padded_vocabulary / kUnit;
    Gradient* gradients;
    if constexpr (kFp8) gradients = &op.fp8[std::size_t(blockIdx.x) * op.padded_vocabulary];
    else gradients = row;

    if (target == kIgnoreTarget) {
        if (threadIdx.x == 0) op.losses[blockIdx.x] = 0.0f;
        if (kFp8 || op.write_dlogits)
            for (int i = threadIdx.x; i < units; i += Threads) store_streaming(&gradients[i * kUnit], Gradients{});
        return;
    }
    const bool valid = target >= 0 && target < op.vocabulary;
    // Read before any thread overwrites it: the barriers of the reductions separate the two.
    const float target_logit = valid ? to_float(row[target]) : NAN;

    const int whole_packs = op.vocabulary / Pack::size, rest = op.vocabulary % Pack::size;
    Online<T, PackBytes> online;
    if constexpr (simt::gpu_geometry) {
        int i = threadIdx.x;
        for (; i + (RunPacks - 1) * Threads < whole_packs; i += RunPacks * Threads) {
            Pack run[RunPacks];
            for (int j = 0; j < RunPacks; ++j) run[j] = load<PackBytes>(&row[(i + j * Threads) * Pack::size]);
            online.add_packs(run);
        }
        static_assert(RunPacks == 2, "at most one pack remains");
        if (i < whole_packs) {
            const Pack last[1] = {load<PackBytes>(&row[i * Pack::size])};
            online.add_packs(last);
        }
    } else {
        for (int first = 0; first < whole_packs; first += RunPacks)
            online.add_run(std::min(whole_packs - first, RunPacks),
                          [=](int j) { return load<PackBytes>(&row[(first + j) * Pack::size]); });
    }
    if (rest > 0 && threadIdx.x == 0)
        online.add_run(1, [=](int) { return load_below<PackBytes>(&row[whole_packs * Pack::size], rest); });

    const float maximum = block_max<Threads>(online.maximum);
    const float sum = block_sum<Threads>(online.sum.total() * Powers::ratio(online.maximum, maximum));
    if (threadIdx.x == 0) op.losses[blockIdx.x] = Powers::loss(sum, maximum, target_logit);
    if (!kFp8 && !op.write_dlogits) return;

    const float scale = !valid ? NAN : kFp8 ? kFp8GradientScale : op.scale;
    const float inverse = 1.0f / sum, factor = scale * inverse;
    // The target's gradient also gets -1. With a vocabulary of one token the softmax must be exactly 1, so a GPU
    // divides. On a CPU exp(0) is exactly 1, so the cheaper multiplication by 1 / sum also gives 1. Computed before the
    // loops, where its operands would take registers.
    const float power = Powers::power(target_logit, maximum);
    const float target_gradient = ((simt::gpu_geometry ? power / sum : power * inverse) - 1.0f) * scale;
    const int whole_units = op.vocabulary / kUnit, rest_of_unit = op.vocabulary % kUnit;
    constexpr int kAtOnce = simt::gpu_geometry && kUnit == Pack::size ? RunPacks : 1;
    int i = threadIdx.x;
    for (; i + (kAtOnce - 1) * Threads < whole_units; i += kAtOnce * Threads) {
        Unit run[kAtOnce];
        for (int j = 0; j < kAtOnce; ++j) run[j] = load<sizeof(Unit)>(&row[(i + j * Threads) * kUnit]);
        for (int j = 0; j < kAtOnce; ++j)
            store_streaming(&gradients[(i + j * Threads) * kUnit], gradients_of<Gradient>(run[j], maximum, factor));
    }
    for (; i < units; i += Threads) {
        Gradients some{};
        if (i < whole_units) {
            some = gradients_of<Gradient>(load<sizeof(Unit)>(&row[i * kUnit]), maximum, factor);
        } else if (i == whole_units) {
            for (int k = 0; k < rest_of_unit; ++k)
                some[k] = rounded_gradient<Gradient>(Powers::power(to_float(row[i * kUnit + k]), maximum) * factor);
        }
        store_streaming(&gradients[i * kUnit], some);
    }
    // The thread that wrote the target's unit does this, so no barrier is needed.
    if (valid && int(threadIdx.x) == target / kUnit % Threads)
        gradients[target] = rounded_gradient<Gradient>(target_gradient);
}

// A single block suffices: it reads one float per row, negligible compared with the logits of that row.
constexpr int kLossThreads = simt::gpu_geometry ? 512 : 1;
__global__ void __launch_bounds__(kLossThreads) accumulate_losses_kernel(std::span<double> total,
                                                                         std::span<const float> losses) {
    constexpr int kChains = 8;  // independent additions, which overlap on a GPU and vectorise on a CPU
    double sum[kChains] = {};
    const std::size_t chunk = std::size_t(kLossThreads) * kChains, whole = losses.size() / chunk * chunk;
    for (std::size_t first = threadIdx.x; first < whole; first += chunk)
        for (int k = 0; k < kChains; ++k) sum[k] += losses[first + k * kLossThreads];
    for (std::size_t i = whole + threadIdx.x; i < losses.size(); i += kLossThreads) sum[0] += losses[i];
    for (int k = 1; k < kChains; ++k) sum[0] += sum[k];
    const double all = block_sum<kLossThreads>(sum[0]);
    if (threadIdx.x == 0) total[0] += all;
}

template <class T, int Threads, int PackBytes, int RunPacks>
void launch_classifier(const Classifier<T>& op, StreamRef stream) {
    const simt::LaunchConfig config{.grid = unsigned(op.rows), .block = Threads, .stream = stream};
    if constexpr (sizeof(T) == sizeof(bf16))
        if (!op.fp8.empty())
            return simt::launch<classifier_kernel<T, e5m2, Threads, PackBytes, RunPacks>>(config, op);
    simt::launch<classifier_kernel<T, T, Threads, PackBytes, RunPacks>>(config, op);
}

}  // namespace

template <class T>
void classifier(const Classifier<T>& op, StreamRef stream) {
    require(op.rows >= 0, "rows", op.rows, "0 or more");
    require(op.vocabulary > 0, "vocabulary", op.vocabulary, "at least 1");
    require(op.padded_vocabulary >= op.vocabulary, "padded_vocabulary", op.padded_vocabulary,
            "at least the vocabulary");
    const int multiple = op.fp8.empty() ? kGpuPackBytes / int(sizeof(T)) : kGpuPackBytes;
    require(op.padded_vocabulary % multiple == 0, "padded_vocabulary", op.padded_vocabulary,
            "a multiple of " + std::to_string(multiple));
    require(op.fp8.empty() || sizeof(T) == sizeof(bf16), "the gradients of fp32 logits", "in fp8", "in place");
    if (!op.fp8.empty())
        require_size("fp8", op.fp8, std::size_t(op.rows) * op.padded_vocabulary, "rows * padded_vocabulary");
    require_size("logits", op.logits, std::size_t(op.rows) * op.padded_vocabulary, "rows * padded_vocabulary");
    require_size("losses", op.losses, op.rows, "rows");
    require_size("targets", op.targets, op.rows, "rows");
    if (op.rows == 0) return;
    // 1024 threads for a row of GPT-2's vocabulary, 128 for a byte vocabulary. Two packs at a time, because more do not
    // fit into the 32 registers per thread that two blocks of 1024 threads leave. Not measured yet.
    if constexpr (simt::gpu_geometry) {
        if (op.padded_vocabulary > 8192) launch_classifier<T, 1024, kGpuPackBytes, 2>(op, stream);
        else launch_classifier<T, 128, kGpuPackBytes, 2>(op, stream);
    } else if (op.padded_vocabulary % (kCpuPackBytes / sizeof(T)) == 0)
        launch_classifier<T, 1, kCpuPackBytes, 64>(op, stream);
    else launch_classifier<T, 1, kGpuPackBytes, 64>(op, stream);
}

void accumulate_losses(std::span<double> total, std::span<const float> losses, StreamRef stream) {
    require_size("total", total, 1);
    simt::launch<accumulate_losses_kernel>({.grid = 1, .block = kLossThreads, .stream = stream}, total, losses);
}

template void classifier(const Classifier<float>&, StreamRef);
template void classifier(const Classifier<bf16>&, StreamRef);

}  // namespace kernels
