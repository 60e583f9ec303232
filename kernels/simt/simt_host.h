// simt_host.h - simt.h on a CPU: runs a kernel's blocks on the cores of the machine
//
// The OpenMP threads process the blocks in short ranges. A block of one thread is a plain function call, inlined and
// vectorised: CPU training uses this. The threads of a larger block are fibers (simt_block.h): this tests the GPU
// geometry without a GPU.
// A launch is synchronous. It throws the first exception of a kernel thread; other blocks may or may not have run.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/device/types.h"
#include "kernels/simt/races/simt_race.h"
#include "kernels/simt/simt_block.h"
#include "kernels/simt/simt_intrinsics.h"
#include "kernels/simt/simt_kernel_name.h"
#include "kernels/simt/simt_language.h"
#include "kernels/simt/simt_launch_config.h"
#include "kernels/simt/simt_warp.h"

namespace simt {

// Runs blocks `first` to `last - 1` of the grid, x fastest, on the calling OS thread.
using RunRange = void (*)(const LaunchConfig& config, const void* arguments, std::int64_t first, std::int64_t last);

// A launch: `kernel` is the compiler's name for it, `arguments` the bytes of a tuple.
struct Launch {
    LaunchConfig config;
    const char* kernel;
    RunRange run_range;
    std::span<const std::byte> arguments;
};

// Throws Error if the configuration is invalid on a GPU.
void run_grid(const Launch& launch);
void run_fiber_blocks(const LaunchConfig& config, const BoundKernel& kernel, std::int64_t first, std::int64_t last);

template <class> struct Signature;
template <class... Parameters> struct Signature<void (*)(Parameters...)> {
    static_assert((std::is_trivially_copyable_v<Parameters> && ...), "a kernel's parameters are copied to the device");
    using Arguments = std::tuple<Parameters...>;
};

template <auto Kernel, class Arguments>
__forceinline__ void call_kernel(const Arguments& arguments) {
    [&]<std::size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
        Kernel(std::get<I>(arguments)...);
    }(std::make_index_sequence<std::tuple_size_v<Arguments>>());
}

// blockIdx of block `number`; advance() steps to the next block.
inline uint3 block_index(const dim3& grid, std::int64_t number) {
    return {unsigned(number % grid.x), unsigned(number / grid.x % grid.y),
            unsigned(number / (std::int64_t(grid.x) * grid.y))};
}
__forceinline__ void advance(uint3& index, const dim3& grid) {
    if (++index.x < grid.x) return;
    index.x = 0;
    if (++index.y < grid.y) return;
    index.y = 0;
    ++index.z;
}

// `flatten` inlines the kernel and all functions that it calls; the local copy of the arguments cannot alias the
// kernel's stores.
template <auto Kernel, class Arguments>
[[gnu::flatten]] void run_single_thread_blocks(const LaunchConfig& config, const void* shared_arguments,
                                               std::int64_t first, std::int64_t last) {
    const Arguments arguments = *static_cast<const Arguments*>(shared_arguments);
    const dim3 grid = config.grid;
    threadIdx = {0, 0, 0};  // the caller sets the same values, but here the compiler sees that they are constants
    blockDim = dim3(1);
    uint3 index = block_index(grid, first);
    for (std::int64_t block = first; block < last; ++block) {
        blockIdx = index;
        call_kernel<Kernel>(arguments);
        advance(index, grid);
    }
}

template <auto Kernel, class Arguments>
void run_many_thread_blocks(const LaunchConfig& config, const void* arguments, std::int64_t first, std::int64_t last) {
    const auto call = [](const void* bound)
                          SIMT_INLINE_ALL { call_kernel<Kernel>(*static_cast<const Arguments*>(bound)); };
    run_fiber_blocks(config, {call, arguments}, first, last);
}

template <auto Kernel, class... Args>
void launch(const LaunchConfig& config, Args&&... args) {
    using Arguments = typename Signature<decltype(Kernel)>::Arguments;
    const Arguments arguments(static_cast<Args&&>(args)...);
    const bool single = !finds_races && config.block.x == 1 && config.block.y == 1 && config.block.z == 1;
    const RunRange run_range = single ? run_single_thread_blocks<Kernel, Arguments>
                                      : run_many_thread_blocks<Kernel, Arguments>;
    run_grid({config, kernel_name<Kernel>(), run_range, std::as_bytes(std::span(&arguments, 1))});
}

}  // namespace simt
