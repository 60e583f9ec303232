// simt_race.h - detects data races between the threads of a kernel: two unordered accesses to the same bytes, at least
// one of them a write
//
// Only builds with TRAIN_GPT2_RACES detect races. There the compiler inserts calls of __tsan_read4 and similar
// functions before every access of a kernel, which simt_race.cpp implements. For each two bytes it stores the last
// accesses: the thread and a logical time, which advances at the start of every launch and block and at every barrier.
// An access is reported unless CUDA guarantees that the earlier access happens before it, on every GPU and in every
// order of threads:
//     a launch happens after all earlier launches;
//     __syncthreads orders the accesses of all threads of the block, __syncwarp those of the lanes in its mask;
//     a cp.async may write at any time from its issue until the issuing thread waits for it.
// Shuffles, mma and ldmatrix order no memory accesses, and blocks are not ordered. Kernels use no atomics and no
// fences: results would depend on the order of threads. ThreadSanitizer's own runtime is not usable here: it supports
// 8128 threads, forgets old accesses at random, mistakes a new thread for an ended one with the same number, and cannot
// throw.
//
// A race throws Error at the block's next wait or at its end. For many readers of the same bytes two are stored, of
// different blocks or warps if possible; so after a __syncwarp of some lanes, a race with one of the others may be
// missed.
#pragma once
#include <cstddef>

namespace simt {

#if defined(TRAIN_GPT2_RACES)
inline constexpr bool finds_races = true;
#define SIMT_INLINE_ALL __attribute__((flatten))  // a race report then lists all calls from the kernel down
#else
#define SIMT_INLINE_ALL
inline constexpr bool finds_races = false;
#endif

// For the blocks of this OS thread. Called only if finds_races.
namespace races {

enum class Access : unsigned char { read, write };

void begin_launch();
void begin_block(unsigned threads);
void end_block();  // accesses are ignored until the next begin_block
void sync_block();
void sync_warp(unsigned first_thread, unsigned mask);  // first_thread: lane 0 of the warp
// Records a memory access of the running thread, made by the instruction before `caller`.
void note(const void* address, std::size_t bytes, Access access, const void* caller);

// During its lifetime, accesses are ignored: they are the executor's own.
class Pause {
public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;

private:
    void* before_;
};

}  // namespace races
}  // namespace simt
