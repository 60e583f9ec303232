// simt_race.h - races between the threads of a kernel: two accesses to the same bytes, not both reads and not both
// atomic, that nothing orders
//
// Only builds with TRAIN_GPT2_RACES look for them. There the compiler calls __tsan_read4 and its like before every
// access of a kernel; simt_race.cpp answers these calls. It keeps for each two bytes who accessed them last, and when:
// moments are counted, one more at every begin of a launch or a block and at every barrier. Whether an earlier access
// comes before what a thread does now on every GPU, not only in the order that happens to run, then follows from what
// CUDA promises and from nothing else:
//     a launch comes after what came before it;
//     __syncthreads and its voting kin order what all threads of the block did, __syncwarp what the lanes of its mask
//     did;
//     what a thread does after an atomic and a __threadfence comes after what others did before a __threadfence and an
//     atomic on the same address; a copy by cp.async may write at any time from its issue to the wait of the thread
//     that issued it.
// Shuffles, votes of a warp, mma and ldmatrix order no memory, and blocks come in no order. The compiler's own library
// would not do: it holds 8128 threads, forgets old accesses by chance, takes a new thread for the ended one whose
// number it got, and cannot throw.
//
// A race is an Error at the block's next wait or end. Of many readers of the same bytes two are kept, of different
// blocks or warps where there are; so after a __syncwarp of some lanes only, a race with one of the others may pass.
#pragma once
#include <cstddef>

namespace simt {

#if defined(TRAIN_GPT2_RACES)
inline constexpr bool finds_races = true;
#define SIMT_INLINE_ALL __attribute__((flatten))  // the places of a race then name all calls from the kernel down
#else
#define SIMT_INLINE_ALL
inline constexpr bool finds_races = false;
#endif

// Of this OS thread's blocks. None of these is called unless finds_races.
namespace races {

enum class Access : unsigned char { read, write, atomic };

void begin_launch();
void begin_block(unsigned threads);
void end_block();  // until the next begin no access is looked at
void meet_block();
void meet_warp(unsigned first_thread, unsigned mask);  // first_thread: lane 0 of the warp
// The running thread accesses memory in the instruction before `caller`.
void note(const void* address, std::size_t bytes, Access access, const void* caller);
void fence();

// While it lives, accesses are the executor's own.
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
