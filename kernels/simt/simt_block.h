// simt_block.h - one block on one core: its threads as fibers, its shared memory, its barriers
//
// The threads of a block run one after another on one stack until one of them has to wait, in a barrier or a warp
// collective; only then does another one get a stack of its own. A kernel without cooperation therefore costs a
// function call a thread, and nothing has to be declared. Who is next is chosen by simt_order.h.
// Blocks of one thread do not come here at all: simt_host.h calls the kernel directly, and `running.scheduler` is null.
//
// What cannot go on is an Error (Blame::runtime) that names kernel, block, and which threads wait where; it never
// hangs. The other threads of the block are then unwound, so that their destructors run and their stacks can be used
// again.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "kernels/simt/simt_language.h"
#include "kernels/simt/simt_order.h"
#include "kernels/simt/simt_shared.h"

namespace simt {

inline constexpr int kWarpLanes = 32;
inline constexpr unsigned kMaxBlockThreads = 1024;

// The operation that a thread waits in, and where the kernel calls it.
enum class Wait : std::uint8_t {
    syncthreads, syncthreads_or, syncthreads_and, syncthreads_count, syncwarp, mma, ldmatrix, shfl, shfl_xor, shfl_up,
    shfl_down, ballot, any,
    all, reduce_add, reduce_min, reduce_max, reduce_and, reduce_or, reduce_xor
};
struct Site {
    Wait wait;
    std::source_location where;
};

// A kernel with its arguments bound.
struct BoundKernel {
    void (*call)(const void* arguments);
    const void* arguments;
};

class Fiber;
class SkippedBarrier;

// Runs blocks of more than one thread. One per core, for as long as the core's OS thread lives, so that stacks are
// reused.
class BlockScheduler {
public:
    BlockScheduler();
    ~BlockScheduler();
    BlockScheduler(const BlockScheduler&) = delete;

    // Of all blocks until the next call.
    void use_order(const Order& order) { order_ = order; }
    // Runs all threads of the block that blockIdx names to their end. Rethrows what a thread threw; else throws Error
    // if one wrote outside the block's shared arrays.
    void run_block(const BoundKernel& kernel, dim3 block);

    // The rest is called by the running thread.
    struct Votes { int any, all, count; };
    Votes wait_block(Site site, int predicate);

    // Waits for the lanes of `mask`; the last one to arrive runs `combine` over what each of them left in `operands`.
    using Combine = void (*)(void* const* operands, unsigned mask);
    void wait_warp(unsigned mask, Site site, void* operands, Combine combine);
    int lane() const { return int(current_->number % kWarpLanes); }
    unsigned thread_number() const { return current_->number; }
    bool on_own_stack(const void* address) const;

    // Ends the block with `failure` where that cannot be thrown: no thread comes out of its next wait.
    void fail_at_next_wait(std::exception_ptr failure);

    // "; threads 0-39 wait in __syncthreads at x.cu:7; threads 40-63 have exited"
    std::string describe_threads() const;

    void run_fiber();  // the body of every fiber

private:
    enum class State : std::uint8_t { ready, at_barrier, in_collective, exited };
    struct Thread {
        uint3 index;
        unsigned number;
        State state;
        Fiber* fiber;  // null: not begun, or exited
        unsigned mask;
        Site site;
    };
    // Lanes that wait for each other. A lane waits in one at a time, so there are never more of them than lanes.
    struct Collective { unsigned mask, arrived; Site site; Combine combine; };
    struct Warp {
        unsigned existing;  // lanes that the block has at all
        int collectives_under_way;
        std::array<Collective, kWarpLanes> collectives;
        std::array<void*, kWarpLanes> operands;
    };

    static void note_site(Thread& thread, Site site);
    void reset(dim3 block);
    void run_thread(Thread& thread);
    void wake(Thread& thread);
    void wake_all();
    void wake_lanes(Thread* first, unsigned mask);
    Thread* next_thread();
    Thread* next_to_unwind();
    void suspend();
    void transfer(Thread& next);
    void switch_to(Fiber& fiber);
    Fiber& idle_fiber();

    std::vector<std::unique_ptr<Fiber>> fibers_;
    std::unique_ptr<Fiber> own_;  // the stack that called run_block
    std::vector<Fiber*> idle_;
    Fiber* running_ = nullptr;

    BoundKernel kernel_{};
    dim3 shape_{0, 0, 0};
    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    std::vector<Thread*> ready_;  // the last one runs next, unless any may
    Order order_;
    const SkippedBarrier* skipped_;
    Draws draws_;
    bool any_may_run_ = false;  // until the next barrier
    Thread* current_ = nullptr;
    Thread* starting_ = nullptr;  // what the fiber switched to shall begin
    unsigned live_ = 0;

    unsigned at_barrier_ = 0;
    Site barrier_site_{};
    Votes arriving_{}, votes_{};

    std::exception_ptr failure_;
    std::size_t unwound_ = 0;  // threads before this one have been unwound after a failure
};

// What runs on this core.
struct Running {
    const char* kernel = nullptr;         // as the compiler spells it; null: no kernel
    BlockScheduler* scheduler = nullptr;  // null: blocks of one thread
    SharedMemory shared;
};
inline thread_local constinit Running running{};

// Throws an Error that names kernel, block, thread and what all threads wait for.
[[noreturn, gnu::cold, gnu::noinline]] void fault(const std::string& what);
[[noreturn, gnu::cold, gnu::noinline]] void fault_misaligned(const void* address, int bytes);

// A pack must lie at a multiple of its size. A GPU faults by itself; here it is an Error.
inline void check_aligned(const void* address, int bytes) {
    if (reinterpret_cast<std::uintptr_t>(address) % unsigned(bytes) != 0) [[unlikely]] fault_misaligned(address, bytes);
}

inline BlockScheduler::Votes vote(Wait wait, const std::source_location& where, int predicate) {
    if (running.scheduler) return running.scheduler->wait_block({wait, where}, predicate);
    return {predicate != 0, predicate != 0, predicate != 0};
}

}  // namespace simt

#define SIMT_SHARED(T, name, extent)                        \
    static const char simt_declaration_of_##name[] = #name; \
    using simt_type_of_##name = T extent;                   \
    simt_type_of_##name& name =                             \
        *static_cast<simt_type_of_##name*>( \
            simt::running.shared.variable(simt_declaration_of_##name, sizeof(simt_type_of_##name), alignof(T)))
#define SIMT_DYN_SHARED(T, name) T* name = static_cast<T*>(simt::running.shared.dynamic())

inline void __syncthreads(const std::source_location& where = std::source_location::current()) {
    simt::vote(simt::Wait::syncthreads, where, 0);
}
inline int __syncthreads_or(int predicate, const std::source_location& where = std::source_location::current()) {
    return simt::vote(simt::Wait::syncthreads_or, where, predicate).any;
}
inline int __syncthreads_and(int predicate, const std::source_location& where = std::source_location::current()) {
    return simt::vote(simt::Wait::syncthreads_and, where, predicate).all;
}
inline int __syncthreads_count(int predicate, const std::source_location& where = std::source_location::current()) {
    return simt::vote(simt::Wait::syncthreads_count, where, predicate).count;
}
