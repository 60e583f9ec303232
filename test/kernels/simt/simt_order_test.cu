// simt_order_test.cu - the host executor's thread orders, NaN in shared memory and red zones reveal faults in kernels
//
// Each faulty kernel computes a wrong result, or throws Error, in the orders that its row names; its repaired version
// is correct in all of them. Forward misses a missing barrier if threads read values of lower threads.
#include <cmath>
#include <set>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/simt/simt.h"
#include "kernels/simt/simt_order.h"
#include "test/kernels/simt/launch_support.h"

namespace {

using test::Contains;
using simt::Order;
using Kind = Order::Kind;

constexpr int kThreads = 64;

std::vector<Order> all_orders() {
    std::vector<Order> orders{{Kind::forward}};
    for (std::uint64_t seed = 1; seed <= 32; ++seed) orders.push_back({Kind::mix, seed});
    return orders;
}

// The output of a block of 64 threads, each of which writes its own element of `out`.
template <auto Kernel>
std::vector<float> result(const Order& order) {
    const simt::UseOrder use(order);
    std::vector<float> out(kThreads, -1.0f);
    simt::launch<Kernel>({.grid = 1, .block = kThreads, .shared_bytes = 256}, out.data());
    return out;
}

template <int Step, bool Repaired>
__global__ void reads_neighbour(float* out) {
    SIMT_SHARED(float, line, [64]);
    const int i = threadIdx.x;
    line[i] = float(i);
    if (Repaired) __syncthreads();
    out[i] = line[(i + Step + 64) % 64];
}

// Both warps increment a counter; if one reads between the other's read and write, an increment is lost.
template <bool Repaired>
__global__ void counts_warps(float* out) {
    SIMT_SHARED(int, counter, );
    const bool counts = threadIdx.x % 32 == 0;
    if (threadIdx.x == 0) counter = 0;
    __syncthreads();
    const int seen = Repaired ? 0 : counter;
    __syncwarp();
    if (!Repaired && counts) counter = seen + 1;
    for (unsigned warp = 0; Repaired && warp < 2; ++warp) {
        if (threadIdx.x == 32 * warp) ++counter;
        __syncthreads();
    }
    __syncthreads();
    out[threadIdx.x] = float(counter);
}

// Reads uninitialized shared memory: NaN.
template <bool Dynamic, bool Repaired>
__global__ void forgets_an_element(float* out) {
    SIMT_SHARED(float, fixed, [64]);
    SIMT_DYN_SHARED(float, dynamic);
    float* const line = Dynamic ? dynamic : fixed;
    const int i = threadIdx.x;
    if (Repaired || i != 63) line[i] = i < 63 ? 1.0f : 0.0f;
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < 64; ++k) sum += line[k];
    out[i] = sum;
}

TEST_CASE("missing barriers and uninitialized shared memory change the result", "[simt][one_order][races]") {
    struct Row {
        const char* what;
        std::vector<float> (*faulty)(const Order&), (*repaired)(const Order&);
        float (*want)(int thread);
        std::set<Kind> found_by;  // by mix: with at least one seed
    };
    for (const Row& row : std::vector<Row>{
             {"a lower neighbour", result<reads_neighbour<-1, false>>, result<reads_neighbour<-1, true>>,
              [](int i) { return float((i + 63) % 64); }, {Kind::forward, Kind::mix}},
             {"a higher neighbour", result<reads_neighbour<1, false>>, result<reads_neighbour<1, true>>,
              [](int i) { return float((i + 1) % 64); }, {Kind::forward, Kind::mix}},
             {"interleaved warps", result<counts_warps<false>>, result<counts_warps<true>>, [](int) { return 2.0f; },
              {Kind::mix}},
             {"uninitialized", result<forgets_an_element<false, false>>, result<forgets_an_element<false, true>>,
              [](int) { return 63.0f; }, {Kind::forward, Kind::mix}},
             {"uninitialized, dynamic", result<forgets_an_element<true, false>>, result<forgets_an_element<true, true>>,
              [](int) { return 63.0f; }, {Kind::forward, Kind::mix}},
         }) {
        CAPTURE(row.what);
        std::vector<float> want(kThreads);
        for (int i = 0; i < kThreads; ++i) want[i] = row.want(i);
        std::set<Kind> found;
        for (const Order& order : all_orders()) {
            if (row.faulty(order) != want) found.insert(order.kind);
            CHECK(row.repaired(order) == want);
        }
        CHECK(found == row.found_by);
    }
    // Without poisoning the block reads the values of the previous block: the fault is hidden.
    CHECK(result<forgets_an_element<true, false>>({Kind::forward, 1, false}) == std::vector<float>(kThreads, 63.0f));
}

__global__ void writes_in_first_block(float* seen) {
    SIMT_SHARED(float, line, [64]);
    if (blockIdx.x == 0) line[threadIdx.x] = 1.0f;
    __syncthreads();
    seen[blockIdx.x * blockDim.x + threadIdx.x] = line[threadIdx.x];
}

TEST_CASE("a block does not see the shared memory of another block of its launch", "[simt]") {
    std::vector<float> seen(20 * kThreads);
    simt::launch<writes_in_first_block>({.grid = 20, .block = kThreads}, seen.data());
    for (int i = 0; i < int(seen.size()); ++i) REQUIRE(std::isnan(seen[i]) == (i >= kThreads));
}

// ---- writes outside shared arrays

// Writes one element `past` elements after the end of an array. The messages name both static arrays and the dynamic
// one.
enum class Target { first, second, dynamic };
__global__ void writes_past(Target target, int past, int* out) {
    SIMT_SHARED(int, squares, [48]);
    SIMT_SHARED(double, totals, [3]);
    SIMT_DYN_SHARED(int, row);
    if (threadIdx.x == 7 && blockIdx.x == 2) {
        if (target == Target::first) (&squares[0])[48 + past] = 1;
        if (target == Target::second) (&totals[0])[3 + past] = 1;
        if (target == Target::dynamic) row[10 + past] = 1;
    }
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.x == 0) *out = 1;
}

TEST_CASE("a write outside a shared array is reported in every order, with kernel, block and array",
          "[simt][one_order]") {
    struct Row {
        Target target;
        int past;
        const char* says;  // "": nothing
    };
    const bool poison = GENERATE(true, false);
    for (Order order : all_orders())
        for (const Row& row : std::vector<Row>{
                 {Target::first, -1, ""},
                 {Target::second, -1, ""},
                 {Target::dynamic, -1, ""},
                 {Target::first, 0, "0 bytes past the end of shared array squares (192 bytes)"},
                 {Target::second, 0, "0 bytes past the end of shared array totals (24 bytes)"},
                 {Target::dynamic, 0, "0 bytes past the end of the dynamic shared memory (40 bytes)"},
                 {Target::second, -4, "8 bytes before the start of shared array totals (24 bytes)"},
                 {Target::dynamic, -11, "4 bytes before the start of the dynamic shared memory (40 bytes)"}}) {
            order.poison = poison;
            CAPTURE(int(order.kind), order.seed, poison, int(row.target), row.past);
            const simt::UseOrder use(order);
            int out = 0;
            const std::string where = "kernel writes_past, block (2, 0, 0) of 64 threads: a thread wrote ";
            CHECK(test::error_of_launch<writes_past>({.grid = 4, .block = kThreads, .shared_bytes = 40}, row.target,
                                                     row.past, &out) == (*row.says ? where + row.says : "accepted"));
        }
}

}  // namespace
