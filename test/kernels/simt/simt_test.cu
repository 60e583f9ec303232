// simt_test.cu - guarantees of the host executor: geometry, shared memory, barriers, exceptions, reuse of stacks
//
// Warp collectives are in simt_warp_test.cu, faulty kernels in simt_fault_test.cu.
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device/limits_host.h"
#include "kernels/pack.cuh"
#include "kernels/reduce.cuh"
#include "kernels/simt/simt.h"
#include "test/kernels/simt/launch_support.h"
#include "test/support/catch.h"

namespace {

using test::add_on_host, test::CountsLife;

__device__ unsigned thread_number() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
__device__ unsigned block_number() { return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; }

// ---- geometry

template <bool Barrier>
__global__ void count_visits(unsigned* visits, dim3 grid, dim3 block, int* wrong) {
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    if (Barrier) __syncthreads();
    if (gridDim.x != grid.x || gridDim.y != grid.y || gridDim.z != grid.z) add_on_host(wrong, 1);
    if (blockDim.x != block.x || blockDim.y != block.y || blockDim.z != block.z) add_on_host(wrong, 1);
    if (threadIdx.x >= block.x || threadIdx.y >= block.y || threadIdx.z >= block.z) add_on_host(wrong, 1);
    if (blockIdx.x >= grid.x || blockIdx.y >= grid.y || blockIdx.z >= grid.z) add_on_host(wrong, 1);
    ++visits[block_number() * threads + thread_number()];
}

TEST_CASE("every thread of every block runs once and has the right indices", "[simt]") {
    const dim3 grid = GENERATE(dim3(1), dim3(1000), dim3(3, 5, 7), dim3(1, 1, 9));
    const dim3 block = GENERATE(dim3(1), dim3(2), dim3(33), dim3(4, 3, 5), dim3(1, 1, 64), dim3(1024));
    const unsigned threads = block.x * block.y * block.z, blocks = grid.x * grid.y * grid.z;
    CAPTURE(grid.x, grid.y, grid.z, block.x, block.y, block.z);
    std::vector<unsigned> visits(threads * blocks);
    int wrong = 0;
    simt::launch<count_visits<false>>({.grid = grid, .block = block}, visits.data(), grid, block, &wrong);
    CHECK(visits == std::vector<unsigned>(threads * blocks, 1));
    simt::launch<count_visits<true>>({.grid = grid, .block = block}, visits.data(), grid, block, &wrong);
    CHECK(visits == std::vector<unsigned>(threads * blocks, 2));
    CHECK(wrong == 0);
}

// ---- shared memory

// Every variable is written before the barrier by one thread and read after it by another.
template <class T>
__global__ void reverse(T* out, bool* aligned) {
    SIMT_SHARED(T, line, [128]);
    SIMT_SHARED(T, table, [2][128]);
    SIMT_SHARED(T, scalar, );
    SIMT_DYN_SHARED(T, dynamic);
    const int i = threadIdx.x, last = blockDim.x - 1;
    if (i == 0) scalar = T(blockIdx.x);
    line[i] = T(i);
    table[0][i] = T(1000 + i);
    table[1][i] = T(2000 + i);
    dynamic[i] = T(3000 + i);
    __syncthreads();
    out[blockIdx.x * blockDim.x + i] = line[last - i] + table[0][last - i] + table[1][last - i] + dynamic[last - i] +
                                       scalar;
    for (const void* address :
         {static_cast<const void*>(line), static_cast<const void*>(table), static_cast<const void*>(&scalar)})
        if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) *aligned = false;
    if (reinterpret_cast<std::uintptr_t>(dynamic) % 128 != 0) *aligned = false;
}

TEMPLATE_TEST_CASE("static and dynamic shared memory belong to the block", "[simt]", float, double, int) {
    const int threads = GENERATE(1, 31, 128), blocks = 50;
    std::vector<TestType> out(blocks * threads);
    bool aligned = true;
    // An odd number of dynamic bytes must not misalign the static variables.
    simt::launch<reverse<TestType>>({.grid = blocks, .block = threads,
                                     .shared_bytes = threads * sizeof(TestType) + 1}, out.data(), &aligned);
    for (int b = 0; b < blocks; ++b)
        for (int i = 0; i < threads; ++i) REQUIRE(out[b * threads + i] == TestType(6000 + 4 * (threads - 1 - i) + b));
    CHECK(aligned);
}

__global__ void fill_shared(int* out) {
    SIMT_SHARED(unsigned char, big, [100 * 1024]);
    SIMT_DYN_SHARED(unsigned char, dynamic);
    if (threadIdx.x == 0) {
        big[100 * 1024 - 1] = 1;
        dynamic[127 * 1024 - 1] = 2;
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) add_on_host(out, big[100 * 1024 - 1] + dynamic[127 * 1024 - 1]);
}

TEST_CASE("a block may use all the shared memory that its device has, 227 KiB at most, static and dynamic together",
          "[simt]") {
    const device::UseLimits sm_90({.multiprocessors = 132, .shared_bytes = 227 * 1024});
    const int threads = GENERATE(1, 64);
    int out = 0;
    simt::launch<fill_shared>({.grid = 20, .block = threads, .shared_bytes = 127 * 1024}, &out);
    CHECK(out == 60);
}

// ---- barriers

template <int Threads, class Number>
__global__ void reduce(Number* sum, float* max) {
    const int i = blockIdx.x * Threads + threadIdx.x;
    const Number total = kernels::block_sum<Threads>(Number(i));
    const Number twice = kernels::block_sum<Threads>(2 * total / Threads);  // again: the same shared memory
    const float largest = kernels::block_max<Threads>(float(i));
    const float smallest = -kernels::block_max<Threads>(-float(i));
    sum[i] = total + twice;
    max[i] = largest + smallest;
}

TEMPLATE_TEST_CASE_SIG("block reductions reach every thread", "[simt]", ((class Number, int Threads), Number, Threads),
                       (float, 1), (float, 32), (double, 64), (float, 256), (double, 1024)) {
    const int blocks = 7;
    std::vector<Number> sum(blocks * Threads);
    std::vector<float> max(sum.size());
    simt::launch<reduce<Threads, Number>>({.grid = blocks, .block = Threads}, sum.data(), max.data());
    for (int i = 0; i < int(sum.size()); ++i) {
        const int first = i / Threads * Threads, last = first + Threads - 1;
        REQUIRE(sum[i] == Number(3 * (first + last) * Threads / 2));  // integers below 2^24: exact
        REQUIRE(max[i] == float(first + last));
    }
}

// ---- where blocks run

struct Rendezvous {
    int arrived = 0;
    bool met = true;
};

// Waits, with a timeout, until `parties` have arrived.
bool meets(int& arrived, int parties) {
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    add_on_host(&arrived, 1);
    while (add_on_host(&arrived, 0) < parties && std::chrono::steady_clock::now() < patience)
        std::this_thread::yield();
    return add_on_host(&arrived, 0) >= parties;
}

class OpenMPThreads {
public:
    explicit OpenMPThreads(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
    ~OpenMPThreads() { omp_set_num_threads(before_); }

private:
    int before_;
};

__global__ void meet(Rendezvous* place, int parties) {
    __syncthreads();
    if (threadIdx.x == 0 && !meets(place->arrived, parties)) place->met = false;
}

TEST_CASE("blocks run on different cores at the same time", "[simt][at_once]") {
    const OpenMPThreads three(3);
    const int threads = GENERATE(1, 64);
    Rendezvous place;
    simt::launch<meet>({.grid = 3, .block = threads}, &place, 3);
    CHECK(place.met);
}

// Block 0 ends when all other blocks have arrived.
__global__ void wait_for_the_rest(Rendezvous* place) {
    if (blockIdx.x == 0) place->met = meets(place->arrived, int(gridDim.x));
    else add_on_host(&place->arrived, 1);
}

TEST_CASE("no block waits for a slow block", "[simt][at_once]") {
    const OpenMPThreads two(2);
    Rendezvous place;
    simt::launch<wait_for_the_rest>({.grid = 16, .block = 1}, &place);
    CHECK(place.met);
}

__global__ void note_thread(std::thread::id* ran_on, int* numbers) {
    SIMT_SHARED(int, number, );
    if (threadIdx.x == blockDim.x - 1) number = int(blockIdx.x);
    __syncthreads();
    if (threadIdx.x != 0) return;
    ran_on[blockIdx.x] = std::this_thread::get_id();
    numbers[blockIdx.x] = number;
}

TEST_CASE("a launch inside a parallel region runs on its own thread", "[simt]") {
    const int block = GENERATE(1, 64), callers = 3, blocks = 20;
    std::vector<std::vector<std::thread::id>> ran_on(callers, std::vector<std::thread::id>(blocks));
    std::vector<int> ascending(blocks);
    std::iota(ascending.begin(), ascending.end(), 0);
    std::vector<std::vector<int>> numbers(callers, std::vector<int>(blocks));
    std::vector<std::thread::id> caller(callers);
    const int levels = omp_get_max_active_levels();
    omp_set_max_active_levels(2);  // so that OpenMP would allow more threads
#pragma omp parallel num_threads(callers)
    {
        const int me = omp_get_thread_num();
        caller[me] = std::this_thread::get_id();
        simt::launch<note_thread>({.grid = blocks, .block = block}, ran_on[me].data(), numbers[me].data());
    }
    omp_set_max_active_levels(levels);
    for (int i = 0; i < callers; ++i) {
        CHECK(ran_on[i] == std::vector<std::thread::id>(blocks, caller[i]));
        CHECK(numbers[i] == ascending);
    }
}

// ---- blocks of one thread

__global__ void polynomial(float* out, const float* in, int elements) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    const float x = in[i];
    out[i] = ((0.3f * x - 1.7f) * x + rsqrtf(x + 2.0f)) * x;
}

TEST_CASE("blocks of one thread and fibers are bit-identical", "[simt]") {
    const int elements = 1000;
    std::vector<float> in(elements), single(elements), fibers(elements);
    for (int i = 0; i < elements; ++i) in[i] = 0.37f * i;
    simt::launch<polynomial>({.grid = elements, .block = 1}, single.data(), in.data(), elements);
    simt::launch<polynomial>({.grid = 8, .block = 128}, fibers.data(), in.data(), elements);
    CHECK(single == fibers);
}

// ---- exceptions and reuse of stacks

__global__ void throws_in(unsigned thread, unsigned block, int* alive, int* went_on) {
    const CountsLife life(alive);
    __syncthreads();
    if (threadIdx.x == thread && blockIdx.x == block) throw std::out_of_range("from a kernel");
    __syncthreads();
    if (blockIdx.x == block) add_on_host(went_on, 1);
}

TEST_CASE("an exception reaches the caller of launch, and waiting threads are unwound", "[simt]") {
    const int block = GENERATE(1, 32, 200);
    const unsigned thrower = GENERATE(0u, 1u) * unsigned(block - 1), in_block = GENERATE(0u, 11u);
    int alive = 0, went_on = 0;
    CHECK_THROWS_AS((simt::launch<throws_in>({.grid = 12, .block = block}, thrower, in_block, &alive, &went_on)),
                    std::out_of_range);
    CHECK(alive == 0);
    CHECK(went_on == 0);
    CHECK_NOTHROW(simt::launch<throws_in>({.grid = 12, .block = block}, 5000u, 0u, &alive, &went_on));
    CHECK(alive == 0);
    CHECK(went_on == block);
}

long memory_mappings() {
    std::ifstream maps("/proc/self/maps");
    long lines = 0;
    for (std::string line; std::getline(maps, line);) ++lines;
    return lines;
}

TEST_CASE("stacks are reused and freed", "[simt][mappings]") {
    int alive = 0, went_on = 0;
    const auto launch_many = [&](int launches, int threads, unsigned thrower) {
        for (int i = 0; i < launches; ++i) try {
                simt::launch<throws_in>({.grid = 1, .block = threads}, thrower, 0u, &alive, &went_on);
            } catch (const std::out_of_range&) {
            }
    };
    launch_many(2, 64, 3);
    const long before = memory_mappings();
    launch_many(10000, 64, 5000);
    launch_many(1000, 64, 3);
    CHECK(memory_mappings() <= before + 8);  // leaking one stack per launch would add thousands

    std::thread([&] { launch_many(3, 512, 3); }).join();
    CHECK(memory_mappings() <= before + 16);  // the 512 stacks of that thread were freed with it
}

// Writes downwards through more than one stack. The next stack lies below this one, separated only by the guard page.
__global__ void overflow() {
    __syncthreads();
    volatile char frame[192 * 1024];
    for (int i = sizeof frame - 1; i >= 0; i -= 1024) frame[i] = 0;
    _exit(0);
}

TEST_CASE("a fiber that overflows its stack hits the guard page", "[simt]") {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        simt::launch<overflow>({.grid = 1, .block = 8});
        _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

// ---- built-in functions

TEST_CASE("round_to<bf16> rounds to nearest even and keeps NaN", "[simt]") {
    using kernels::bf16, kernels::round_to, kernels::to_float;
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
        const float x = to_float(bf16{std::uint16_t(bits)});
        if (std::isnan(x)) {
            REQUIRE(std::isnan(to_float(round_to<bf16>(x))));
            continue;
        }
        REQUIRE(round_to<bf16>(x).bits == bits);
        if (std::isinf(x) || (bits & 0x7fff) >= 0x7f7f) continue;
        // Between x and the next bf16 away from 0: down below the midpoint, up above it, to even at the midpoint.
        const std::uint32_t middle = bits << 16 | 0x8000;
        REQUIRE(round_to<bf16>(std::bit_cast<float>(middle - 1)).bits == bits);
        REQUIRE(round_to<bf16>(std::bit_cast<float>(middle + 1)).bits == bits + 1);
        REQUIRE(round_to<bf16>(std::bit_cast<float>(middle)).bits == bits + bits % 2);
    }
    for (std::uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu})
        CHECK(std::isnan(to_float(round_to<bf16>(std::bit_cast<float>(bits)))));
    CHECK(round_to<bf16>(std::numeric_limits<float>::max()).bits == 0x7f80);  // rounds up to infinity
    CHECK(round_to<float>(0.1f) == 0.1f);
}

TEST_CASE("built-in functions of one thread", "[simt]") {
    CHECK(rsqrtf(0.25f) == 2.0f);
    CHECK(__fdividef(1.0f, 4.0f) == 0.25f);
    float stored = 0;
    __stcs(&stored, 3);
    CHECK(stored == 3.0f);
}

}  // namespace
