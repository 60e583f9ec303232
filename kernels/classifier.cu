// classifier.cu - one block per row. The first pass over the logits finds maximum and sum together: the sum of
// exponentials is kept relative to the largest logit seen so far and rescaled when that grows. The second pass turns
// logits into gradients.
#include "kernels/classifier.h"

#include <cfloat>
#include <cmath>

#include "kernels/device/error.h"
#include "kernels/math.cuh"
#include "kernels/pack.cuh"
#include "kernels/ptx.cuh"
#include "kernels/reduce.cuh"
#include "kernels/widen.cuh"

namespace kernels {
namespace {

// The gradients are not read again before a whole row chunk is written: on a GPU they should not push the logits of
// other rows out of the cache.
template <class T, int Bytes>
__device__ void store_streaming(T* address, const Pack<T, Bytes>& pack) {
    if constexpr (Bytes == sizeof(int4)) {
        simt::check_aligned(address, Bytes);
        __stcs(reinterpret_cast<int4*>(address), std::bit_cast<int4>(pack));
    } else {
        store(address, pack);
    }
}

// Exponentials about a maximum, which is kept as scaled() returns it.
//
// A GPU takes powers of two: the exponent is one multiply-add, the power one instruction. (fast_exp's FADD, FMUL and
// MUFU come with three more, for powers below 2^-126.) The scaled maximum is rounded; sums, gradients and loss refer to
// the rounded one, so its rounding cancels.
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
};
using Powers = PowersOf<simt::gpu_geometry>;

// What a thread knows of its share of the row: the largest logit, scaled, and the sums of exponentials about it, one
// per element of the pack. The maximum starts at the lowest finite number, so that logits of -infinity and threads
// without a share need no case of their own.
template <class T, int PackBytes>
struct Online {
    static constexpr int kSize = PackBytes / sizeof(T);
    float maximum = -FLT_MAX;
    Partial<kSize> sum;

    // Returns what the sums so far have to be multiplied with.
    __device__ float raise(float to) {
        const float before = maximum;
        maximum = before < to ? to : before;
        return Powers::ratio(before, maximum);
    }
    // Adds pack(0) to pack(packs - 1): once for their maximum and once more, out of registers or the first-level cache,
    // for their sum. So every logit costs one exponential, and the run one more. `omp simd` here and below keeps GCC
    // from taking the pack apart into scalars before it looks for vectors: 6.7 ms without, 3.8 with (256 x 50304 fp32,
    // losses only, one core).
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
    // The same of `Packs` packs that are in registers, where there are many: a GPU. fmaxf, as add_run, prefers what is
    // no NaN, which the sum finds.
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

    // Halves against halves, which vectorises.
    __device__ static float greatest(float (&x)[kSize]) {
        for (int half = kSize / 2; half > 0; half /= 2)
            for (int k = 0; k < half; ++k) x[k] = x[k] > x[k + half] ? x[k] : x[k + half];
        return x[0];
    }
};

// The pack that holds the end of the vocabulary, with -infinity, which adds nothing, for what lies behind it.
template <int PackBytes, class T>
__device__ Pack<T, PackBytes> load_below(const T* address, int columns) {
    Pack<T, PackBytes> pack;
    for (int k = 0; k < pack.size; ++k) pack[k] = k < columns ? address[k] : round_to<T>(-INFINITY);
    return pack;
}

// Logits in place to gradients, those of the target excepted.
template <class T, int PackBytes>
__device__ __forceinline__ void to_gradients(Pack<T, PackBytes>& pack, float maximum, float factor) {
    if constexpr (simt::gpu_geometry) {
        float x[Pack<T, PackBytes>::size];
        widen(pack, x);
        for (float& each : x) each = Powers::power(each, maximum) * factor;
        pack = rounded_pack<T>(x);
    } else {
        #pragma omp simd
        for (int k = 0; k < pack.size; ++k) pack[k] = round_to<T>(Powers::power(to_float(pack[k]), maximum) * factor);
    }
}

// A thread takes packs threadIdx.x, threadIdx.x + Threads, ... of the row, RunPacks of them at a time. A multiprocessor
// of a GPU takes two blocks, so that one computes while the other's threads wait for each other.
template <class T, int Threads, int PackBytes, int RunPacks>
__global__ void __launch_bounds__(Threads, Threads > 512 ? 2 : 1) classifier_kernel(Classifier<T> op) {
    using Pack = kernels::Pack<T, PackBytes>;
    T* row = &op.logits[std::size_t(blockIdx.x) * op.padded_vocabulary];
    const int packs = op.padded_vocabulary / Pack::size;
    const int target = op.targets[blockIdx.x];

    if (target == kIgnoreTarget) {
        if (threadIdx.x == 0) op.losses[blockIdx.x] = 0.0f;
        if (op.write_dlogits)
            for (int i = threadIdx.x; i < packs; i += Threads) store_streaming(&row[i * Pack::size], Pack{});
        return;
    }
    const bool valid = target >= 0 && target < op.vocabulary;
    // Read before any thread overwrites it: the barriers of the reductions lie in between.
    const float target_logit = valid ? to_float(row[target]) : NAN;

    const int whole_packs = op.vocabulary / Pack::size, rest = op.vocabulary % Pack::size;
    Online<T, PackBytes> share;
    if constexpr (simt::gpu_geometry) {
        int i = threadIdx.x;
        for (; i + (RunPacks - 1) * Threads < whole_packs; i += RunPacks * Threads) {
            Pack run[RunPacks];
            for (int j = 0; j < RunPacks; ++j) run[j] = load<PackBytes>(&row[(i + j * Threads) * Pack::size]);
            share.add_packs(run);
        }
        static_assert(RunPacks == 2, "one pack is left at most");
        if (i < whole_packs) {
            const Pack last[1] = {load<PackBytes>(&row[i * Pack::size])};
            share.add_packs(last);
        }
    } else {
        for (int first = 0; first < whole_packs; first += RunPacks)
            share.add_run(whole_packs - first > RunPacks ? RunPacks : whole_packs - first,
                          [=](int j) { return load<PackBytes>(&row[(first + j) * Pack::size]); });
    }
    if (rest > 0 && threadIdx.x == 0)
        share.add_run(1, [=](int) { return load_below<PackBytes>(&row[whole_packs * Pack::size], rest); });

    const float maximum = block_max<Threads>(share.maximum);
    const float sum = block_sum<Threads>(share.sum.total() * Powers::ratio(share.maximum, maximum));
    if (threadIdx.x == 0) op.losses[blockIdx.x] = Powers::log_sum(sum, maximum) - target_logit;
    if (!op.write_dlogits) return;

    const float scale = valid ? op.scale : NAN;
    const float inverse = 1.0f / sum, factor = scale * inverse;
    constexpr int kAtOnce = simt::gpu_geometry ? RunPacks : 1;
    int i = threadIdx.x;
    for (; i + (kAtOnce - 1) * Threads < whole_packs; i += kAtOnce * Threads) {
        Pack run[kAtOnce];
        for (int j = 0; j < kAtOnce; ++j) run[j] = load<PackBytes>(&row[(i + j * Threads) * Pack::size]);
        for (int j = 0; j < kAtOnce; ++j) to_gradients(run[j], maximum, factor);
        for (int j = 0; j < kAtOnce; ++j) store_streaming(&row[(i + j * Threads) * Pack::size], run[j]);
    }
    for (; i < packs; i += Threads) {
        Pack pack{};
        if (i < whole_packs) {
            pack = load<PackBytes>(&row[i * Pack::size]);
            to_gradients(pack, maximum, factor);
        } else if (i == whole_packs) {
            for (int k = 0; k < rest; ++k)
                pack[k] = round_to<T>(Powers::power(to_float(row[i * Pack::size + k]), maximum) * factor);
        }
        store_streaming(&row[i * Pack::size], pack);
    }
    // By the thread that wrote the target's pack, so that no barrier is needed. A row's only exponential over their sum
    // is 1: on a CPU, whose natural power of the maximum is 1, also times the inverse, which costs less.
    if (valid && int(threadIdx.x) == target / Pack::size % Threads) {
        const float power = Powers::power(target_logit, maximum);
        row[target] = round_to<T>(((simt::gpu_geometry ? power / sum : power * inverse) - 1.0f) * scale);
    }
}

// One block: there is one loss a row, which is nothing beside the row.
template <int Threads>
__global__ void __launch_bounds__(Threads) accumulate_losses_kernel(std::span<double> total,
                                                                    std::span<const float> losses) {
    constexpr int kChains = 8;  // independent additions, which overlap on a GPU and vectorise on a CPU
    double sum[kChains] = {};
    const std::size_t chunk = std::size_t(Threads) * kChains, whole = losses.size() / chunk * chunk;
    for (std::size_t first = threadIdx.x; first < whole; first += chunk)
        for (int k = 0; k < kChains; ++k) sum[k] += losses[first + k * Threads];
    for (std::size_t i = whole + threadIdx.x; i < losses.size(); i += Threads) sum[0] += losses[i];
    for (int k = 1; k < kChains; ++k) sum[0] += sum[k];
    const double all = block_sum<Threads>(sum[0]);
    if (threadIdx.x == 0) total[0] += all;
}

template <class T, int Threads, int PackBytes, int RunPacks>
void launch_classifier(const Classifier<T>& op, StreamRef stream) {
    simt::launch<classifier_kernel<T, Threads, PackBytes, RunPacks>>({.grid = unsigned(op.rows), .block = Threads,
                                                                      .stream = stream}, op);
}

}  // namespace

template <class T>
void classifier(const Classifier<T>& op, StreamRef stream) {
    constexpr int kMultiple = kGpuPackBytes / sizeof(T);
    require(op.rows >= 0, "rows", op.rows, "0 or more");
    require(op.vocabulary > 0, "vocabulary", op.vocabulary, "at least 1");
    require(op.padded_vocabulary >= op.vocabulary, "padded_vocabulary", op.padded_vocabulary,
            "at least the vocabulary");
    require(op.padded_vocabulary % kMultiple == 0, "padded_vocabulary", op.padded_vocabulary,
            "a multiple of " + std::to_string(kMultiple));
    require(op.logits.size() >= std::size_t(op.rows) * op.padded_vocabulary, "size of logits", op.logits.size(),
            "at least rows * padded_vocabulary");
    require(op.losses.size() >= std::size_t(op.rows), "size of losses", op.losses.size(), "at least one a row");
    require(op.targets.size() >= std::size_t(op.rows), "size of targets", op.targets.size(), "at least one a row");
    if (op.rows == 0) return;
    // 1024 threads share GPT-2's row, 128 suffice for a vocabulary of bytes; two packs at a time are as many as 32
    // registers hold. Not measured yet.
    if constexpr (simt::gpu_geometry) {
        if (op.padded_vocabulary > 8192) launch_classifier<T, 1024, kGpuPackBytes, 2>(op, stream);
        else launch_classifier<T, 128, kGpuPackBytes, 2>(op, stream);
    } else if (op.padded_vocabulary % (kCpuPackBytes / sizeof(T)) == 0)
        launch_classifier<T, 1, kCpuPackBytes, 64>(op, stream);
    else launch_classifier<T, 1, kGpuPackBytes, 64>(op, stream);
}

void accumulate_losses(std::span<double> total, std::span<const float> losses, StreamRef stream) {
    require(!total.empty(), "size of total", total.size(), "1");
    constexpr int kThreads = simt::gpu_geometry ? 512 : 1;
    simt::launch<accumulate_losses_kernel<kThreads>>({.grid = 1, .block = kThreads, .stream = stream}, total, losses);
}

template void classifier(const Classifier<float>&, StreamRef);
template void classifier(const Classifier<bf16>&, StreamRef);

}  // namespace kernels
