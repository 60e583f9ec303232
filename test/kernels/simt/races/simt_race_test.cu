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

// The message that a launch of Kernel throws; "": none. Reports depend on the order only in which of the two threads
// comes first.
template <auto Kernel, class... Args>
std::string race_of(const simt::LaunchConfig& config, Args... args) {
    const std::string message = test::error_of_launch<Kernel>(config, args...);
    if (!message.empty()) CHECK_THAT(message, Contains(": a race: "));
    return message;
}

// Without the places of launches: GCC 14 inlines some kernels into them.
std::string without_calls(const std::string& message) {
    return std::regex_replace(message, std::regex(", called at [^,;]+"), "");
}

// ---- __syncthreads and __syncwarp

constexpr int kWriteLine = NEXT_LINE + 3;
template <int Step, bool Repaired>
__global__ void reads_neighbour(float* out) {
    SIMT_SHARED(float, line, [64]);
    line[threadIdx.x] = float(threadIdx.x);
    if (Repaired) __syncthreads();
    out[threadIdx.x] = line[(threadIdx.x + Step + 64) % 64];
}

TEST_CASE("a missing barrier between write and read of shared memory is a race", "[race]") {
    const simt::UseOrder forward{simt::Order{}};
    std::vector<float> out(64);
    // Descending threads read stale values, ascending ones the right values: the race is reported in both orders.
    CHECK(without_calls(race_of<reads_neighbour<-1, false>>({.grid = 1, .block = 64}, out.data())) ==
          "kernel reads_neighbour<-1, false>, block (0, 0, 0) of 64 threads: a race: thread 1 reads 4 bytes at byte 0 "
          "of shared array line "
          "(256 bytes) " +
              at(kWriteLine + 2) + ", which thread 0 wrote " + at(kWriteLine) +
              "; no __syncthreads or __syncwarp separates them");
    CHECK_THAT((race_of<reads_neighbour<1, false>>({.grid = 1, .block = 64}, out.data())),
               Contains("thread 1 writes 4 bytes at byte 4 ") && Contains("which thread 0 read " + at(kWriteLine + 2)));
    CHECK(race_of<reads_neighbour<-1, true>>({.grid = 1, .block = 64}, out.data()) == "");
    CHECK(race_of<reads_neighbour<1, true>>({.grid = 1, .block = 64}, out.data()) == "");
}

template <bool OfBlock>
__global__ void hands_over(float* out) {
    SIMT_SHARED(float, value, );
    if (threadIdx.x == 0) value = 3;
    if (OfBlock) __syncthreads();
    else __syncwarp();
    if (threadIdx.x == 40) *out = value;
}

TEST_CASE("__syncwarp does not order the memory of other warps", "[race]") {
    float out = 0;
    CHECK(race_of<hands_over<true>>({.grid = 1, .block = 64}, &out) == "");
    CHECK_THAT(race_of<hands_over<false>>({.grid = 1, .block = 64}, &out),
               Contains("which thread ") && Contains("; no __syncthreads separates them"));
}

constexpr int kPackLine = NEXT_LINE + 2;
__global__ void write_pack_over(unsigned short* out, const unsigned short* from) {
    if (threadIdx.x == 0) out[7] = 1;
    if (threadIdx.x == 1) kernels::store(out, kernels::load<16>(from));
}

TEST_CASE("an access to one element of a pack races with an access to the pack", "[race]") {
    alignas(16) unsigned short out[8], from[8] = {};
    const unsigned short* const source = from;
    CHECK_THAT(race_of<write_pack_over>({.grid = 1, .block = 2}, out + 0, source),
               Contains("of global memory") && Contains("kernels/pack.cuh:") && Contains(", called " + at(kPackLine)));
}

template <bool Repaired>
__global__ void warp_hands_over(int* out) {
    SIMT_SHARED(int, line, [32]);
    const int lane = threadIdx.x;
    line[lane] = lane;
    out[lane] = __shfl_xor_sync(0xffffffffu, lane, 1);
    if (Repaired) __syncwarp();
    out[lane] = line[lane ^ 1];
}

TEST_CASE("a shuffle does not order the memory of a warp, but __syncwarp does", "[race]") {
    std::vector<int> out(32);
    CHECK_THAT(race_of<warp_hands_over<false>>({.grid = 1, .block = 32}, out.data()),
               Contains("no __syncthreads or __syncwarp separates them"));
    CHECK(race_of<warp_hands_over<true>>({.grid = 1, .block = 32}, out.data()) == "");
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

TEST_CASE("a shared array that is reused without a barrier is a race", "[race]") {
    std::vector<float> out(64);
    for (std::uint64_t seed = 1; seed <= 32; ++seed) {
        // includes orders in which lanes of the writer's warp read first, then the others, then the writer writes
        const simt::UseOrder mix({simt::Order::Kind::mix, seed});
        CHECK_THAT(race_of<overwrites_after_broadcast<false>>({.grid = 1, .block = 64}, out.data()),
                   Contains("; no __syncthreads separates them"));
    }
    CHECK(race_of<overwrites_after_broadcast<true>>({.grid = 1, .block = 64}, out.data()) == "");
    // one warp: __syncwarp is enough
    CHECK(race_of<overwrites_after_broadcast<false>>({.grid = 1, .block = 32}, out.data()) == "");
}

// ---- global memory

template <bool Writes>
__global__ void touches_next_block(float* data, float* out) {
    data[blockIdx.x * blockDim.x + threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x != 0) return;
    float& next = data[(blockIdx.x + 1) % gridDim.x * blockDim.x + 5];
    if (Writes) next = 2;
    else out[blockIdx.x] = next;
}
__global__ void squares(float* data) { data[blockIdx.x * blockDim.x + threadIdx.x] *= 2; }

TEST_CASE("races in global memory are found across blocks", "[race]") {
    std::vector<float> data(4 * 64), out(64);
    CHECK_THAT((race_of<touches_next_block<false>>({.grid = 4, .block = 64}, data.data(), out.data())),
               Contains("kernel touches_next_block<false>, block (1, 0, 0) of 64 threads: a race: thread 5 writes") &&
                   Contains("which thread 0 of block (0, 0, 0) read ") && Contains("; blocks are not ordered"));
    CHECK_THAT((race_of<touches_next_block<true>>({.grid = 4, .block = 64}, data.data(), out.data())),
               Contains("block (1, 0, 0)") && Contains("thread 5 writes") &&
                   Contains("which thread 0 of block (0, 0, 0) wrote "));
    // Blocks of one thread have no barriers, and the last block runs long after the first.
    CHECK_THAT((race_of<touches_next_block<false>>({.grid = dim3(2, 100), .block = 1}, data.data(), out.data())),
               Contains("of block (0, 0, 0)"));
    // launches are ordered
    for (int launch = 0; launch < 2; ++launch) CHECK(race_of<squares>({.grid = 4, .block = 64}, data.data()) == "");
}

// ---- cp.async and ldmatrix

enum class Copy { right, no_barrier, no_wait, into_use };
template <Copy How>
__global__ void copies(unsigned* out, const bf16* from) {
    SIMT_SHARED(bf16, rows, [32 * 8]);
    const int lane = threadIdx.x;
    unsigned reg[4];
    kernels::AsyncCopies queue;
    for (int round = 0; round < 2; ++round) {
        queue.copy(rows + lane * 8, from + lane * 8);
        if (How == Copy::no_wait || How == Copy::into_use) __syncthreads();
        queue.wait();
        if (How != Copy::no_barrier && How != Copy::no_wait) __syncthreads();
        kernels::ldmatrix(reg, rows + (31 - lane) * 8);
        out[lane] = reg[0];
        if (How != Copy::into_use) __syncthreads();
    }
}

TEST_CASE("a copy belongs to its thread from issue to wait, and to others after a barrier", "[race]") {
    const auto from = test::on_device(test::normal<bf16>(32 * 8, 1));
    std::vector<unsigned> out(32);
    const bf16* const rows = from.span().data();
    CHECK(race_of<copies<Copy::right>>({.grid = 3, .block = 32}, out.data(), rows) != "");  // all blocks write `out`
    CHECK(race_of<copies<Copy::right>>({.grid = 1, .block = 32}, out.data(), rows) == "");
    CHECK_THAT((race_of<copies<Copy::no_barrier>>({.grid = 1, .block = 32}, out.data(), rows)),
               Contains("16 bytes at byte ") && Contains("of shared array rows"));
    CHECK_THAT((race_of<copies<Copy::no_wait>>({.grid = 1,
                                                .block = 32}, out.data(), rows)), Contains("of shared array rows"));
    CHECK_THAT((race_of<copies<Copy::into_use>>({.grid = 1,
                                                 .block = 32}, out.data(), rows)), Contains("of shared array rows"));
}

}  // namespace
