// simt_host.cpp - the scheduler behind simt_host.h: who of a block runs when, what is reported, and how blocks spread over the cores
#include "kernels/simt/simt_host.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <sstream>

#include "kernels/simt/simt_fiber.h"
#include "kernels/simt/simt_report.h"
#include "kernels/simt/simt_shared_check.h"
#include "llmc/error.h"

namespace simt {
namespace {

// A fiber's stack and its guard page are two memory mappings, of which Linux grants a process 65530: 16 cores may hold blocks of 1024.
constexpr int kMaxFiberCores = 16;

[[noreturn]] void fiber_entry() {
    running.scheduler->run_fiber();
    std::abort();  // run_fiber never returns: a fiber that has nothing to do is left suspended
}

// Thrown in the waiting threads of a block that failed, to unwind them.
struct Unwind {};

}  // namespace

// ---- faults

static std::string place() {
    std::ostringstream text;
    text << "kernel " << readable(running.kernel ? running.kernel : "(none)") << ", block (" << blockIdx.x << ", " << blockIdx.y << ", "
         << blockIdx.z << ") of " << blockDim.x * blockDim.y * blockDim.z << " threads";
    return text.str();
}

[[noreturn]] void fault(const std::string& what) {
    std::ostringstream text;
    text << place() << ", thread (" << threadIdx.x << ", " << threadIdx.y << ", " << threadIdx.z << "): " << what;
    if (running.scheduler) text << running.scheduler->describe_threads();
    throw Error(text.str(), Blame::runtime);
}

[[noreturn]] void fault_misaligned(const void* address, int bytes) {
    std::ostringstream text;
    text << "address " << address << " lies " << reinterpret_cast<std::uintptr_t>(address) % unsigned(bytes) << " bytes past a multiple of " << bytes
         << "; a pack of " << bytes << " bytes must lie at one";
    if (running.kernel) fault(text.str());
    throw Error(text.str(), Blame::runtime);
}

[[noreturn]] void fault_lane_outside_mask(int lane, int source, unsigned mask) {
    fault("lane " + std::to_string(lane) + " of a shuffle reads lane " + std::to_string(source) + ", which is not in the mask " + hexadecimal(mask));
}
[[noreturn]] void fault_width(int width) { fault("a shuffle's width is " + std::to_string(width) + "; expected a power of two up to 32"); }

std::string BlockScheduler::describe_threads() const {
    const auto alike = [](const Thread& a, const Thread& b) {
        if (a.state != b.state || (a.state == State::ready && (a.fiber == nullptr) != (b.fiber == nullptr))) return false;
        return a.state == State::ready || a.state == State::exited || (same(a.site, b.site) && (a.state == State::at_barrier || a.mask == b.mask));
    };
    std::ostringstream text;
    std::vector<bool> told(threads_.size());
    for (const Thread& first : threads_) {
        if (told[first.number]) continue;
        std::vector<unsigned> numbers;
        for (const Thread& thread : threads_)
            if (alike(first, thread)) {
                numbers.push_back(thread.number);
                told[thread.number] = true;
            }
        text << (numbers.size() == 1 ? "; thread " : "; threads ") << spell_ranges(numbers, 8);
        const bool one = numbers.size() == 1;
        switch (first.state) {
            case State::exited: text << (one ? " has exited" : " have exited"); break;
            case State::ready: text << (first.fiber ? one ? " runs" : " run" : one ? " has not begun" : " have not begun"); break;
            case State::at_barrier: text << (one ? " waits in " : " wait in ") << spell(first.site); break;
            case State::in_collective:
                text << (one ? " waits in " : " wait in ") << spell(first.site) << " with mask " << hexadecimal(first.mask);
                break;
        }
    }
    return text.str();
}

// ---- fibers of one core

BlockScheduler::BlockScheduler() : own_(std::make_unique<Fiber>()) {}
BlockScheduler::~BlockScheduler() = default;

void BlockScheduler::reset(dim3 block) {
    const unsigned count = block.x * block.y * block.z;
    if (block.x != shape_.x || block.y != shape_.y || block.z != shape_.z) {
        shape_ = block;
        threads_.resize(count);
        ready_.reserve(count);
        warps_.resize((count + kWarpLanes - 1) / kWarpLanes);
        for (unsigned i = 0; i < count; ++i) {
            threads_[i].number = i;
            threads_[i].index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
        }
        for (unsigned w = 0; w < warps_.size(); ++w) {
            const unsigned lanes = std::min(count - w * kWarpLanes, unsigned(kWarpLanes));
            warps_[w].existing = lanes == kWarpLanes ? ~0u : (1u << lanes) - 1;
        }
    }
    for (Thread& thread : threads_) {
        thread.fiber = nullptr;
        thread.state = State::ready;
    }
    for (Warp& warp : warps_) warp.waiting_groups = 0;
    live_ = count;
    at_barrier_ = 0;
    failure_ = nullptr;
    unwound_ = 0;
    ready_.clear();
    draws_ = Draws(order_.seed, (std::uint64_t(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
    wake_all();
}

void BlockScheduler::run_block(const BoundKernel& kernel, dim3 block) {
    kernel_ = kernel;
    running.shared.begin_block(order_.poison);
    reset(block);
    running_ = own_.get();
    transfer(*next_thread());
    current_ = nullptr;
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    if (const std::string stray = running.shared.describe_stray_write(); !stray.empty())
        throw Error(place() + ": a thread wrote " + stray, Blame::runtime);
}

void BlockScheduler::run_fiber() {
    for (;;) {
        run_thread(*starting_);
        Thread* next = next_thread();
        if (next && !next->fiber) {  // begins right here, on the stack that has become free
            starting_ = next;
            continue;
        }
        idle_.push_back(running_);
        if (next) transfer(*next);
        else switch_to(*own_);
        // Later: switched to again, with another thread to start.
    }
}

void BlockScheduler::run_thread(Thread& thread) {
    thread.fiber = running_;
    current_ = &thread;
    threadIdx = thread.index;
    try {
        kernel_.call(kernel_.arguments);
    } catch (const Unwind&) {
    } catch (...) {
        if (!failure_) failure_ = std::current_exception();
    }
    thread.state = State::exited;
    thread.fiber = nullptr;
    --live_;
}

// The last one woken runs first, so a warp that wakes goes as far as it can before the next.
void BlockScheduler::wake(Thread& thread) {
    thread.state = State::ready;
    ready_.push_back(&thread);
}
void BlockScheduler::wake_all() {
    any_may_run_ = order_.kind == Order::Kind::mix && draws_.below(2) == 0;
    std::array<unsigned, kMaxBlockThreads / kWarpLanes> numbers;
    const unsigned count = unsigned(warps_.size());
    for (unsigned i = 0; i < count; ++i) numbers[i] = order_.kind == Order::Kind::reverse ? i : count - 1 - i;
    if (order_.shuffles()) draws_.shuffle(numbers.data(), count);
    for (unsigned i = 0; i < count; ++i) wake_lanes(&threads_[numbers[i] * kWarpLanes], warps_[numbers[i]].existing);
}
// `first`: lane 0 of the warp.
void BlockScheduler::wake_lanes(Thread* first, unsigned mask) {
    const std::size_t begin = ready_.size();
    for (int lane = kWarpLanes; lane-- > 0;)
        if (mask >> lane & 1) wake(first[lane]);
    if (order_.kind == Order::Kind::reverse) std::reverse(ready_.begin() + begin, ready_.end());
    else if (order_.shuffles()) draws_.shuffle(ready_.data() + begin, unsigned(ready_.size() - begin));
}

// Who runs when the current thread waits or has ended; null: all have ended.
BlockScheduler::Thread* BlockScheduler::next_thread() {
    if (!failure_) {
        if (!ready_.empty()) {
            if (any_may_run_) std::swap(ready_.back(), ready_[draws_.below(unsigned(ready_.size()))]);
            Thread* next = ready_.back();
            ready_.pop_back();
            return next;
        }
        if (live_ == 0) return nullptr;
        const char* why = live_ < threads_.size() ? ": threads wait for others that have exited" : ": every thread waits, but not for the same";
        failure_ = std::make_exception_ptr(Error(place() + why + describe_threads(), Blame::runtime));
    }
    return next_to_unwind();
}
BlockScheduler::Thread* BlockScheduler::next_to_unwind() {
    for (; unwound_ < threads_.size(); ++unwound_)
        if (threads_[unwound_].fiber) return &threads_[unwound_];
    return nullptr;
}

void BlockScheduler::suspend() {
    Thread* const me = current_;
    Thread* const next = next_thread();  // never null: this thread has not ended
    if (next != me) transfer(*next);
    if (failure_) throw Unwind{};
}

void BlockScheduler::transfer(Thread& next) {
    if (next.fiber) {
        current_ = &next;
        threadIdx = next.index;
        switch_to(*next.fiber);
    } else {
        Fiber& fiber = idle_fiber();
        starting_ = &next;
        switch_to(fiber);
    }
}

// The one place where stacks change hands.
void BlockScheduler::switch_to(Fiber& fiber) {
    Fiber& from = *running_;
    running_ = &fiber;
    simt_switch_context(&from.stack_pointer, fiber.stack_pointer);
}

Fiber& BlockScheduler::idle_fiber() {
    if (idle_.empty()) {
        idle_.reserve(fibers_.size() + 1);  // so that a fiber that becomes idle never has to allocate
        fibers_.push_back(std::make_unique<Fiber>(fibers_.size(), fiber_entry));
        return *fibers_.back();
    }
    Fiber* fiber = idle_.back();
    idle_.pop_back();
    return *fiber;
}

// Member by member: a copy of the whole would load 16 bytes that were just stored as two pieces, and wait for them (2 of 11 ns a collective).
void BlockScheduler::note_site(Thread& thread, Site site) {
    thread.site.wait = site.wait;
    thread.site.where = site.where;
}

BlockScheduler::Votes BlockScheduler::wait_block(Site site, int predicate) {
    Thread& me = *current_;
    note_site(me, site);
    if (at_barrier_ == 0) {
        barrier_site_ = site;
        arriving_ = {0, 1, 0};
    } else if (!same(site, barrier_site_)) {
        me.state = State::at_barrier;
        fault("threads of one block meet in different barriers");
    }
    arriving_.any |= predicate != 0;
    arriving_.all &= predicate != 0;
    arriving_.count += predicate != 0;
    if (++at_barrier_ == threads_.size()) {
        at_barrier_ = 0;
        votes_ = arriving_;
        wake_all();  // this thread too: the first one of the block goes on
    } else {
        me.state = State::at_barrier;
    }
    suspend();
    return votes_;
}

void BlockScheduler::wait_warp(unsigned mask, Site site, void* operands, Combine combine) {
    Thread& me = *current_;
    const unsigned lane = me.number % kWarpLanes;
    Warp& warp = warps_[me.number / kWarpLanes];
    note_site(me, site);
    me.mask = mask;
    if (!(mask >> lane & 1))
        fault("lane " + std::to_string(lane) + " calls " + spell(site) + " with mask " + hexadecimal(mask) + ", which leaves it out");
    mask &= warp.existing;  // a partial last warp: lanes that do not exist are not waited for
    Group* group = std::find_if(warp.groups.data(), warp.groups.data() + warp.waiting_groups, [&](const Group& g) { return g.mask == mask; });
    if (group == warp.groups.data() + warp.waiting_groups) {
        *group = {mask, 0, site, combine};
        ++warp.waiting_groups;
    } else if (!same(site, group->site) || combine != group->combine) {
        me.state = State::in_collective;
        fault("lanes of one warp meet in different operations");
    }
    group->arrived |= 1u << lane;
    warp.operands[lane] = operands;
    if (group->arrived != mask) {
        me.state = State::in_collective;
        suspend();
        return;
    }
    if (combine) combine(warp.operands.data(), mask);
    *group = warp.groups[--warp.waiting_groups];
    if (order_.kind == Order::Kind::forward) {
        wake_lanes(&me - lane, mask & ~(1u << lane));  // this one goes on at once: a switch less
    } else {
        wake_lanes(&me - lane, mask);
        suspend();
    }
}

// ---- grids

namespace {

// What one OS thread needs to run blocks. Freed when the OS thread ends.
class Core {
public:
    std::byte* shared() {
        if (!shared_) shared_.reset(static_cast<std::byte*>(std::aligned_alloc(256, SharedMemory::kArenaBytes)));
        if (!shared_) fail("shared memory of a block", SharedMemory::kArenaBytes, "room for that many bytes", {}, Blame::runtime);
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

// While it lives, this OS thread runs blocks of one launch.
class RunningGuard {
public:
    // `order` is null for blocks of one thread, which need no fibers.
    RunningGuard(const LaunchConfig& config, const char* kernel, const Order* order) {
        Core& core = this_core();
        running.shared.begin_launch(core.shared(), config.shared_bytes, order != nullptr);
        running.scheduler = order ? &core.scheduler() : nullptr;
        if (order) running.scheduler->use_order(*order);
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

void check_config(const LaunchConfig& config, const char* kernel) {
    const auto refuse = [&](std::string_view what, const auto& value, const std::string& expected) {
        fail("kernel " + readable(kernel) + ": " + std::string(what), value, expected, {}, Blame::runtime);
    };
    const dim3 grid = config.grid, block = config.block, cluster = config.cluster;
    const unsigned threads = block.x * block.y * block.z;  // may wrap only where a side alone is too large
    if (block.x > 1024 || block.y > 1024 || block.z > 64 || threads == 0 || threads > kMaxBlockThreads)
        refuse("block", spell(block), "1 to 1024 threads, at most (1024, 1024, 64)");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        refuse("grid", spell(grid), "at least one block, at most (2147483647, 65535, 65535)");
    if (cluster.x == 0 || cluster.y == 0 || cluster.z == 0 || grid.x % cluster.x || grid.y % cluster.y || grid.z % cluster.z)
        refuse("cluster", spell(cluster), "a divisor of the grid " + spell(grid));
    if (config.shared_bytes > kSharedLimit)
        refuse("shared memory", std::to_string(config.shared_bytes) + " bytes", "at most " + std::to_string(kSharedLimit));
    if (running.kernel)
        throw Error("kernel " + readable(kernel) + " is launched by kernel " + readable(running.kernel) + "; only the host launches", Blame::runtime);
}

// The blocks that one core begins with. Equal launches give a core the same blocks, which it may still have in its cache or in its own memory;
// who is done helps the others, one range at a time.
struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
};
constexpr int kRangesPerShare = 8;

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

void run_grid(const LaunchConfig& config, const char* kernel, RunRange run_range, const void* arguments) {
    check_config(config, kernel);
    const bool fibers = config.block.x * config.block.y * config.block.z > 1;
    const Order* const order = fibers ? &current_order() : nullptr;
    const std::int64_t blocks = std::int64_t(config.grid.x) * config.grid.y * config.grid.z;
    const int team = blocks == 1 || omp_in_parallel() ? 1 : omp_get_max_threads();
    if (team == 1) {
        const RunningGuard guard(config, kernel, order);
        run_range(config, arguments, 0, blocks);
        return;
    }

    // The team is always the whole one: OpenMP would end the threads that a smaller team leaves over, and start them anew for the next launch.
    const int workers = int(std::min<std::int64_t>(fibers ? std::min(team, kMaxFiberCores) : team, blocks));
    std::vector<Share> shares(workers);
    for (int i = 0; i < workers; ++i) {
        shares[i].next = blocks * i / workers;
        shares[i].end = blocks * (i + 1) / workers;
    }
    const std::int64_t length = std::max<std::int64_t>(1, blocks / workers / kRangesPerShare);
    std::exception_ptr failure;
    std::atomic<bool> failed{false};
    std::mutex failing;
#pragma omp parallel
    if (const int worker = omp_get_thread_num(); worker < workers) {
        try {
            const RunningGuard guard(config, kernel, order);
            for (int i = 0; i < workers; ++i) {
                Share& share = shares[(worker + i) % workers];
                for (std::int64_t first; !failed && (first = share.next.fetch_add(length, std::memory_order_relaxed)) < share.end;)
                    run_range(config, arguments, first, std::min(share.end, first + length));
            }
        } catch (...) {
            const std::lock_guard lock(failing);
            if (!failed.exchange(true)) failure = std::current_exception();
        }
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace simt
