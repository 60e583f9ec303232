// simt_block.h - executes one block on one core: its threads as fibers, its shared memory, its barriers
//
// The threads of a block run one after another on one stack until one of them has to wait in a barrier or a warp
// collective; only then does the next thread get its own stack. So a kernel without barriers and warp collectives costs
// one function call per thread, without being marked as such. simt_order.h determines the order of threads.
// Blocks of one thread bypass this file: simt_host.h calls the kernel directly, and `running.scheduler` is null.
//
// A deadlock never hangs: it throws an Error (Blame::runtime) that names the kernel, the block, and which threads wait
// where. The other threads of the block are then unwound, so that their destructors run and their stacks can be reused.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "kernels/simt/simt_language.h"
#include "kernels/simt/simt_launch_config.h"
#include "kernels/simt/simt_order.h"
#include "kernels/simt/simt_shared.h"

namespace simt {

inline constexpr unsigned kMaxBlockThreads = 1024;

// The operation that a thread waits in, and its call site in the kernel.
enum class Wait : std::uint8_t {
    syncthreads, syncwarp, mma, ldmatrix, shfl_xor
};
// A source line; as a default argument, that of the caller. Replaces std::source_location, which Clang 14 lacks.
class CallSite {
public:
    static constexpr CallSite current(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
        return {file, line};
    }
    constexpr CallSite() = default;
    constexpr const char* file_name() const { return file_; }
    constexpr unsigned line() const { return line_; }

private:
    constexpr CallSite(const char* file, unsigned line) : file_(file), line_(line) {}
    const char* file_ = "";
    unsigned line_ = 0;
};
struct Site {
    Wait wait;
    CallSite where;
};

// A kernel with its arguments bound.
struct BoundKernel {
    void (*call)(const void* arguments);
    const void* arguments;
};

class Fiber;

// Runs blocks of more than one thread. There is one per OS thread for the thread's lifetime, so that stacks are reused.
class BlockScheduler {
public:
    BlockScheduler();
    ~BlockScheduler();
    BlockScheduler(const BlockScheduler&) = delete;

    // Sets the order for all blocks until the next call.
    void use_order(const Order& order) { order_ = order; }
    // Runs all threads of block `blockIdx` to completion. Rethrows the first exception of a thread; throws Error if a
    // thread wrote outside the block's shared arrays.
    void run_block(const BoundKernel& kernel, dim3 block);

    // The functions below are called by the running thread.
    void wait_block(Site site);

    // Waits for the lanes of `mask`; the last lane to arrive runs `combine` on the `operands` of all of them.
    using Combine = void (*)(void* const* operands, unsigned mask);
    void wait_warp(unsigned mask, Site site, void* operands, Combine combine);
    int lane() const { return int(current_->number % kWarp); }
    unsigned thread_number() const { return current_->number; }
    bool on_own_stack(const void* address) const;

    // Fails the block with `failure` from a caller that cannot throw: no thread returns from its next wait.
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
        Fiber* fiber;  // null: not started, or exited
        unsigned mask;
        Site site;
    };
    // A warp collective in progress. Each lane waits in at most one, so a warp never has more of them than lanes.
    struct Collective { unsigned mask, arrived; Site site; Combine combine; };
    struct Warp {
        unsigned existing;  // lanes that belong to the block: fewer than 32 in a partial last warp
        int active_collectives;
        std::array<Collective, kWarp> collectives;
        std::array<void*, kWarp> operands;
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
    std::unique_ptr<Fiber> own_;  // the stack of run_block's caller
    std::vector<Fiber*> idle_;
    Fiber* running_ = nullptr;

    BoundKernel kernel_{};
    dim3 shape_{0, 0, 0};
    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    std::vector<Thread*> ready_;  // the last one runs next, unless any_may_run_
    Order order_;
    Draws draws_;
    bool any_may_run_ = false;  // run ready threads in random order until the next barrier
    Thread* current_ = nullptr;
    Thread* starting_ = nullptr;  // the thread that the next fiber starts
    unsigned live_ = 0;

    unsigned at_barrier_ = 0;
    Site barrier_site_{};

    std::exception_ptr failure_;
    std::size_t unwound_ = 0;  // threads before this one have been unwound after a failure
};

// The kernel and block that this OS thread executes.
struct Running {
    const char* kernel = nullptr;         // the compiler's name for it; null: no kernel
    BlockScheduler* scheduler = nullptr;  // null: blocks of one thread
    SharedMemory shared;
};
inline thread_local constinit Running running{};

// Throws an Error that names kernel, block and thread, and describes where all threads wait.
[[noreturn, gnu::cold, gnu::noinline]] void fault(const std::string& what);
[[noreturn, gnu::cold, gnu::noinline]] void fault_misaligned(const void* address, int bytes);

// A pack (vector load or store) must be aligned to its size. Otherwise a GPU reports cudaErrorMisalignedAddress; the
// executor throws Error.
inline void check_aligned(const void* address, int bytes) {
    if (reinterpret_cast<std::uintptr_t>(address) % unsigned(bytes) != 0) [[unlikely]] fault_misaligned(address, bytes);
}

}  // namespace simt

#define SIMT_SHARED(T, name, extent)                        \
    static const char simt_declaration_of_##name[] = #name; \
    using simt_type_of_##name = T extent;                   \
    simt_type_of_##name& name =                             \
        *static_cast<simt_type_of_##name*>( \
            simt::running.shared.variable(simt_declaration_of_##name, sizeof(simt_type_of_##name), alignof(T)))
#define SIMT_DYN_SHARED(T, name) T* name = static_cast<T*>(simt::running.shared.dynamic())

inline void __syncthreads(const simt::CallSite& where = simt::CallSite::current()) {
    if (simt::running.scheduler) simt::running.scheduler->wait_block({simt::Wait::syncthreads, where});
}
