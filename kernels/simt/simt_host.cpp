// simt_host.cpp - simt_host.h: distributes the blocks of a grid over the cores
#include "kernels/simt/simt_host.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>

#include "kernels/base/error.h"
#include "kernels/device/limits.h"
#include "kernels/simt/simt_report.h"

namespace simt {
namespace {

// A fiber's stack and its guard page are two memory mappings, and Linux allows a process 65530: enough for blocks of
// 1024 threads on 16 cores.
constexpr int kMaxFiberCores = 16;

// The resources that one OS thread needs to run blocks. Freed when the OS thread ends.
class Core {
public:
    std::byte* shared() {
        if (!shared_) shared_.reset(static_cast<std::byte*>(std::aligned_alloc(256, SharedMemory::kArenaBytes)));
        if (!shared_)
            fail("shared memory of a block", SharedMemory::kArenaBytes, "room for that many bytes", {}, Blame::runtime);
        return shared_.get();
    }
    BlockScheduler& scheduler() {
        if (!scheduler_) scheduler_ = std::make_unique<BlockScheduler>();
        return *scheduler_;
    }

private:
    struct Free { void operator()(std::byte* memory) const { std::free(memory); } };
    std::unique_ptr<std::byte, Free> shared_;
    std::unique_ptr<BlockScheduler> scheduler_;
};
static_assert(SharedMemory::kArenaBytes % 256 == 0 && kRedZoneBytes % 256 == 0);

Core& this_core() {
    static thread_local Core core;
    return core;
}

// During its lifetime, this OS thread runs blocks of one launch.
class RunningGuard {
public:
    // `order` is null for blocks of one thread, which need no fibers.
    RunningGuard(const LaunchConfig& config, const char* kernel, std::size_t shared_limit, const Order* order) {
        Core& core = this_core();
        running.shared.begin_launch(core.shared(), config.shared_bytes, shared_limit, order != nullptr);
        running.scheduler = order ? &core.scheduler() : nullptr;
        if (order) running.scheduler->use_order(*order);
        if constexpr (finds_races) races::begin_launch();
        running.kernel = kernel;
        gridDim = config.grid;
        blockDim = config.block;
        threadIdx = {0, 0, 0};
    }
    ~RunningGuard() {
        running.kernel = nullptr;
        running.scheduler = nullptr;
    }
    RunningGuard(const RunningGuard&) = delete;
};

void check_config(const LaunchConfig& config, const char* kernel, std::size_t shared_limit) {
    const auto refuse = [&](std::string_view what, const auto& value, const std::string& expected) {
        fail("kernel " + readable(kernel) + ": " + std::string(what), value, expected, {}, Blame::runtime);
    };
    const dim3 grid = config.grid, block = config.block;
    const unsigned threads = block.x * block.y * block.z;  // wraps only if one dimension alone is already too large
    if (block.x > 1024 || block.y > 1024 || block.z > 64 || threads == 0 || threads > kMaxBlockThreads)
        refuse("block", spell(block), "1 to 1024 threads, at most (1024, 1024, 64)");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        refuse("grid", spell(grid), "at least one block, at most (2147483647, 65535, 65535)");
    if (config.shared_bytes > shared_limit)
        refuse("shared memory", std::to_string(config.shared_bytes) + " bytes",
               "at most " + std::to_string(shared_limit));
    if (running.kernel)
        throw Error("kernel " + readable(kernel) + " is launched by kernel " + readable(running.kernel) +
                        "; only the host may launch kernels",
                    Blame::runtime);
}

// The blocks that are assigned to one core. Equal launches assign a core the same blocks, whose data may still be in
// its cache or its NUMA node; a core that is done steals ranges from the other queues.
struct alignas(64) BlockQueue {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
};
constexpr int kRangesPerQueue = 8;

}  // namespace

const Order& current_order() {
    const auto variable = [](const char* name) { return std::string_view(std::getenv(name) ? std::getenv(name) : ""); };
    if (UseOrder::chosen()) return *UseOrder::chosen();
    static const Order from_environment = parse_order(variable("SIMT_ORDER"), variable("SIMT_POISON"));
    return from_environment;
}

void run_fiber_blocks(const LaunchConfig& config, const BoundKernel& kernel, std::int64_t first, std::int64_t last) {
    uint3 index = block_index(config.grid, first);
    for (std::int64_t block = first; block < last; ++block) {
        blockIdx = index;
        running.scheduler->run_block(kernel, config.block);
        advance(index, config.grid);
    }
}

void run_grid(const Launch& launch) {
    const LaunchConfig& config = launch.config;
    const char* const kernel = launch.kernel;
    const std::size_t shared_limit = std::min(device::limits().shared_bytes, kSharedLimit);  // of the launching thread
    check_config(config, kernel, shared_limit);
    const bool fibers = finds_races || config.block.x * config.block.y * config.block.z > 1;
    const Order* const order = fibers ? &current_order() : nullptr;
    const std::int64_t blocks = std::int64_t(config.grid.x) * config.grid.y * config.grid.z;
    // the race detector observes the blocks of one OS thread
    const int team = blocks == 1 || finds_races || omp_in_parallel() ? 1 : omp_get_max_threads();
    if (team == 1) {
        const RunningGuard guard(config, kernel, shared_limit, order);
        launch.run_range(config, launch.arguments.data(), 0, blocks);
        return;
    }

    // Always use the full OpenMP team: with a smaller one OpenMP ends the surplus threads and starts them again for the
    // next launch.
    const int workers = int(std::min<std::int64_t>(fibers ? std::min(team, kMaxFiberCores) : team, blocks));
    std::vector<BlockQueue> queues(workers);
    for (int i = 0; i < workers; ++i) {
        queues[i].next = blocks * i / workers;
        queues[i].end = blocks * (i + 1) / workers;
    }
    const std::int64_t length = std::max<std::int64_t>(1, blocks / workers / kRangesPerQueue);
    std::exception_ptr failure;
    std::atomic<bool> failed{false};
    std::mutex failing;
#pragma omp parallel
    if (const int worker = omp_get_thread_num(); worker < workers) {
        try {
            const RunningGuard guard(config, kernel, shared_limit, order);
            for (int i = 0; i < workers; ++i) {
                BlockQueue& queue = queues[(worker + i) % workers];
                for (std::int64_t first;
                     !failed && (first = queue.next.fetch_add(length, std::memory_order_relaxed)) < queue.end;)
                    launch.run_range(config, launch.arguments.data(), first, std::min(queue.end, first + length));
            }
        } catch (...) {
            const std::lock_guard lock(failing);
            if (!failed.exchange(true)) failure = std::current_exception();
        }
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace simt
