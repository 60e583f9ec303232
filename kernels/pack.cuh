// pack.cuh - the unit of memory access in kernels: an aligned vector of neighbouring elements, `Bytes` long, which a
// GPU moves with one instruction
#pragma once
#include <algorithm>

#include "kernels/simt/simt.h"

// An array stays in registers only if every loop over it is unrolled; without the pragma nvcc once put 528 bytes of
// flash attention's arrays on the stack.
#if defined(TRAIN_GPT2_CUDA)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED
#endif

namespace kernels {

template <class T, int Bytes>
struct alignas(Bytes) Pack {
    static constexpr int size = Bytes / sizeof(T);
    T element[size];
    __device__ T& operator[](int i) { return element[i]; }
    __device__ const T& operator[](int i) const { return element[i]; }
};

// GPU: the largest access of one instruction. CPU: a cache line (one 512-bit or two 256-bit registers of floats).
inline constexpr int kGpuPackBytes = 16;
inline constexpr int kCpuPackBytes = 64;

// `address` must be aligned to Bytes; the host executor checks this, a GPU faults. A GPU returns the pack in registers;
// a CPU returns a reference to memory, because g++ copies a value to the stack first (LayerNorm backward 18-26 %
// slower). Bind the result to `const auto&` only if no store in between changes that memory.
#if defined(TRAIN_GPT2_CUDA)
template <int Bytes, class T>
__device__ Pack<T, Bytes> load(const T* address) {
    return *reinterpret_cast<const Pack<T, Bytes>*>(address);
}
// Costs no instruction. The compiler must assume that the word has changed, so it does not keep values derived from it.
__device__ __forceinline__ void hide_from_compiler(unsigned& word) { asm volatile("" : "+r"(word)); }
#else
inline void hide_from_compiler(unsigned&) {}
template <int Bytes, class T>
const Pack<T, Bytes>& load(const T* address) {
    simt::check_aligned(address, Bytes);
    return *reinterpret_cast<const Pack<T, Bytes>*>(address);
}
#endif

template <class T, int Bytes>
__device__ void store(T* address, const Pack<T, Bytes>& pack) {
    simt::check_aligned(address, Bytes);
    *reinterpret_cast<Pack<T, Bytes>*>(address) = pack;
}

// A CPU's pack of a row if the channels are a multiple of it: the same number of elements for every type, because g++
// vectorises a loop of 32 but unrolls one of 16 first and then adds single floats (LayerNorm forward, 1024 x 768 fp32,
// one core: 0.18 ms with 128 bytes, 0.34 with 64).
inline constexpr int kCpuPackElements = 32;

// Calls launch.template operator()<Lanes, PackBytes>() with the threads that share a row and the bytes of a pack: a
// warp on a GPU, one thread on a CPU. A build instantiates only its own geometry.
template <class T, class Launch>
void with_row_packs(int channels, Launch&& launch) {
    if constexpr (simt::gpu_geometry) launch.template operator()<simt::kWarp, kGpuPackBytes>();
    else if (channels % kCpuPackElements == 0) launch.template operator()<1, kCpuPackElements * int(sizeof(T))>();
    else launch.template operator()<1, 16>();
}

// For elementwise kernels: calls use(i) with the first element of each of this thread's packs. A block processes a tile
// of neighbouring packs, neighbouring threads neighbouring packs of it.
template <class T, int PackBytes, class Use>
__device__ __forceinline__ void for_packs_of_tile(std::size_t elements, int tile_packs, Use&& use) {
    constexpr std::size_t kSize = PackBytes / sizeof(T);
    const std::size_t first = std::size_t(blockIdx.x) * tile_packs;
    const std::size_t end = std::min(first + tile_packs, elements / kSize);
    for (std::size_t i = first + threadIdx.x; i < end; i += blockDim.x) use(i * kSize);
}
// Launches such a kernel with the packs of a tile as its last argument. Four packs per thread on a GPU: not measured
// yet. Tiles of 16 KiB on a CPU: for GELU 4 KiB took up to 10 % longer, and 64 KiB was not faster.
template <auto Kernel, int PackBytes, class Op>
void launch_tiles(const Op& op, std::size_t bytes, StreamRef stream) {
    constexpr int kThreads = simt::gpu_geometry ? 256 : 1,
                  kTilePacks = simt::gpu_geometry ? 4 * kThreads : 16384 / PackBytes;
    const unsigned blocks = unsigned(ceil_div(bytes / PackBytes, kTilePacks));
    simt::launch<Kernel>({.grid = std::max(1u, blocks), .block = kThreads, .stream = stream}, op, kTilePacks);
}

}  // namespace kernels
