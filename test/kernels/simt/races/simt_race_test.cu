// simt_race_test.cu - races that the executor must report, with kernel, block, threads and source lines, in every
// thread order; and correct kernels, which it must accept. Only in builds with race detection (simt_race.h)
#include <regex>

#include "kernels/pack.cuh"
#include "kernels/ptx.cuh"
#include "kernels/simt/simt.h"
#include "test/kernels/simt/launch_support.h"
#include "test/support/support.h"

namespace {

using test::Contains;
using kernels::bf16;

std::string at(int line) { return "at test/kernels/simt/races/simt_race_test.cu:" + std::to_string(line); }

// The message that a launch of Kernel throws; "accepted": none. Reports depend on the order only in which of the two
// threads comes first.
template <auto Kernel, class... Args>
std::string race_of(const simt::LaunchConfig& config, Args... args) {
    const std::string message = test::error_of_launch<Kernel>(config, args...);
    if (message != "accepted") CHECK_THAT(message, Contains(": a race: "));
    return message;
}

// ---- shared memory

constexpr int kWriteLine = NEXT_LINE + 3;
template <int Step, bool Repaired>
__global__ void reads_neighbour(float* out) {
    SIMT_SHARED(float, line, [64]);
    line[threadIdx.x] = float(threadIdx.x);
    if (Repaired) __syncthreads();
    out[threadIdx.x] = line[(threadIdx.x + Step + 64) % 64];
}

template <bool OfBlock>
__global__ void hands_over(float* out) {
    SIMT_SHARED(float, value, );
    if (threadIdx.x == 0) value = 3;
    if (OfBlock) __syncthreads();
    else __syncwarp();
    if (threadIdx.x == 40) *out = value;
}

template <bool Repaired>
__global__ void warp_hands_over(float* out) {
    SIMT_SHARED(int, line, [32]);
    const int lane = threadIdx.x;
    line[lane] = lane;
    out[lane] = float(__shfl_xor_sync(0xffffffffu, lane, 1));
    if (Repaired) __syncwarp();
    out[lane] = float(line[lane ^ 1]);
}

// Every lane reads what lane 0 overwrites next; the detector stores only two of the readers.
template <bool Repaired>
__global__ void overwrites_after_broadcast(float* out) {
    SIMT_SHARED(float, value, );
    if (threadIdx.x == 0) value = 1;
    __syncthreads();
    out[threadIdx.x] = value;
    __syncwarp();
    if (Repaired) __syncthreads();
    if (threadIdx.x == 0) value = 2;
}

// ---- global memory

constexpr int kPackLine = NEXT_LINE + 2;
__global__ void write_pack_over(float* out) {
    if (threadIdx.x == 0) out[3] = 1;
    if (threadIdx.x == 1) kernels::store(out, kernels::load<16>(out + 4));
}

template <bool Writes>
__global__ void touches_next_block(float* data) {
    float* const out = data + 256;
    data[blockIdx.x * blockDim.x + threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x != 0) return;
    float& next = data[(blockIdx.x + 1) % gridDim.x * blockDim.x + 5];
    if (Writes) next = 2;
    else out[blockIdx.x] = next;
}

// ---- cp.async and ldmatrix: a copy belongs to its thread from issue to wait, and to others after a barrier

enum class Copy { right, no_barrier, no_wait, into_use };
template <Copy How>
__global__ void copies(float* out) {
    SIMT_SHARED(bf16, rows, [32 * 8]);
    const auto from = reinterpret_cast<const bf16*>(out + 32);
    const int lane = threadIdx.x;
    unsigned reg[4];
    kernels::AsyncCopies queue;
    for (int round = 0; round < 2; ++round) {
        queue.copy(rows + lane * 8, from + lane * 8);
        if (How == Copy::no_wait || How == Copy::into_use) __syncthreads();
        queue.wait();
        if (How != Copy::no_barrier && How != Copy::no_wait) __syncthreads();
        kernels::ldmatrix(reg, rows + (31 - lane) * 8);
        out[lane] = float(reg[0]);
        if (How != Copy::into_use) __syncthreads();
    }
}

TEST_CASE("accesses that no barrier orders are a race, those that one orders are not", "[race]") {
    struct Row {
        std::string (*race)(const simt::LaunchConfig&, float*);
        dim3 grid;
        int threads;
        std::vector<std::string> says;  // none: no race
    };
    const std::string block = "; no __syncthreads separates them",
                      block_or_warp = "; no __syncthreads or __syncwarp separates them";
    alignas(16) float out[512] = {};
    for (const Row& row : std::vector<Row>{
             {race_of<reads_neighbour<-1, true>>, 1, 64, {}},
             {race_of<reads_neighbour<1, true>>, 1, 64, {}},
             {race_of<hands_over<true>>, 1, 64, {}},
             {race_of<hands_over<false>>, 1, 64, {"which thread ", block}},  // __syncwarp is for one warp
             {race_of<warp_hands_over<false>>, 1, 32, {block_or_warp}},      // a shuffle orders nothing
             {race_of<warp_hands_over<true>>, 1, 32, {}},
             {race_of<overwrites_after_broadcast<true>>, 1, 64, {}},
             {race_of<overwrites_after_broadcast<false>>, 1, 32, {}},  // one warp: __syncwarp is enough
             {race_of<write_pack_over>, 1, 2, {"of global memory", "kernels/pack.cuh:", ", called " + at(kPackLine)}},
             {race_of<touches_next_block<false>>, 4, 64,
              {"kernel touches_next_block<false>, block (1, 0, 0) of 64 threads: a race: thread 5 writes",
               "which thread 0 of block (0, 0, 0) read ", "; blocks are not ordered"}},
             {race_of<touches_next_block<true>>, 4, 64,
              {"block (1, 0, 0)", "thread 5 writes", "which thread 0 of block (0, 0, 0) wrote "}},
             // Blocks of one thread have no barriers, and the last block runs long after the first.
             {race_of<touches_next_block<false>>, dim3(2, 100), 1, {"of block (0, 0, 0)"}},
             {race_of<copies<Copy::right>>, 3, 32, {"blocks are not ordered"}},  // all blocks write `out`
             {race_of<copies<Copy::right>>, 1, 32, {}},  // launches are ordered
             {race_of<copies<Copy::right>>, 1, 32, {}},
             {race_of<copies<Copy::no_barrier>>, 1, 32, {"16 bytes at byte ", "of shared array rows"}},
             {race_of<copies<Copy::no_wait>>, 1, 32, {"of shared array rows"}},
             {race_of<copies<Copy::into_use>>, 1, 32, {"of shared array rows"}},
         }) {
        const std::string message = row.race({.grid = row.grid, .block = row.threads}, out);
        CAPTURE(message, row.says);
        CHECK((message == "accepted") == row.says.empty());
        for (const std::string& part : row.says) CHECK_THAT(message, Contains(part));
    }
    // Descending threads read stale values, ascending ones the right values: a race in both orders. Without the places
    // of launches: GCC 14 inlines some kernels into them.
    const simt::UseOrder forward{simt::Order{}};
    CHECK_THAT((race_of<reads_neighbour<1, false>>({.grid = 1, .block = 64}, out + 0)),
               Contains("thread 1 writes 4 bytes at byte 4 ") && Contains("which thread 0 read " + at(kWriteLine + 2)));
    CHECK(std::regex_replace(race_of<reads_neighbour<-1, false>>({.grid = 1, .block = 64}, out + 0),
                             std::regex(", called at [^,;]+"), "") ==
          "kernel reads_neighbour<-1, false>, block (0, 0, 0) of 64 threads: a race: thread 1 reads 4 bytes at byte 0 "
          "of shared array line (256 bytes) " + at(kWriteLine + 2) + ", which thread 0 wrote " + at(kWriteLine) +
              block_or_warp);
    for (std::uint64_t seed = 1; seed <= 32; ++seed) {
        // includes orders in which lanes of the writer's warp read first, then the others, then the writer writes
        const simt::UseOrder mix({simt::Order::Kind::mix, seed});
        CHECK_THAT(race_of<overwrites_after_broadcast<false>>({.grid = 1, .block = 64}, out + 0), Contains(block));
    }
}

}  // namespace
