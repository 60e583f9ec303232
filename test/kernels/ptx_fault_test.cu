// ptx_fault_test.cu - how the host executor reports misuse of ptx.cuh: copies that are never waited for, missing
// barriers and lanes, addresses that are invalid on a GPU
#include "kernels/ptx.cuh"
#include "test/kernels/simt/launch_support.h"
#include "test/support/support.h"

namespace ptx_fault_test {

using kernels::bf16;
using kernels::FragmentA;
using kernels::FragmentB;

// Reads the four rows of every thread four times; each thread has its own rows, so no barrier is needed.
constexpr int kRows = 4, kLooks = 4;
__global__ void watch_copies(unsigned short* out, const bf16* from) {
    SIMT_SHARED(bf16, rows, [32 * kRows * 8]);
    bf16* const mine = rows + threadIdx.x * kRows * 8;
    for (int i = 0; i < kRows * 8; ++i) mine[i].bits = 0x1234;
    kernels::AsyncCopies copies;
    const auto look = [&](int number) {
        for (int r = 0; r < kRows; ++r) out[(threadIdx.x * kLooks + number) * kRows + r] = mine[r * 8 + 7].bits;
    };
    const auto fetch = [&](int row) { copies.copy(mine + row * 8, from + (threadIdx.x * kRows + row) * 8); };
    fetch(0);
    fetch(1);
    look(0);
    copies.wait();
    look(1);
    copies.copy(mine + 2 * 8, nullptr, false);
    fetch(3);
    look(2);
    copies.wait();
    copies.wait();
    look(3);
}

TEST_CASE("copies complete when they are waited for, and not earlier", "[ptx]") {
    const unsigned threads = GENERATE(1u, 32u);
    constexpr unsigned kMissing = 0xffff;
    std::vector<bf16> from(32 * kRows * 8);
    for (std::size_t i = 0; i < from.size(); ++i) from[i].bits = std::uint16_t(i);
    const auto device = test::on_device(from);
    auto out = test::poisoned<unsigned short>(32 * kLooks * kRows);
    simt::launch<watch_copies>({.grid = 1,
                                .block = threads}, out.span().data(), static_cast<const bf16*>(device.span().data()));
    const auto got = out.download(nullptr);
    for (unsigned thread = 0; thread < threads; ++thread)
        for (int look = 0; look < kLooks; ++look) {
            const auto row = [&](int r) { return unsigned(got[(thread * kLooks + look) * kRows + r]); };
            const auto arrived = [&](int r) { return (thread * kRows + r) * 8 + 7; };
            CAPTURE(thread, look);
            CHECK(row(0) == (look >= 1 ? arrived(0) : kMissing));
            CHECK(row(1) == (look >= 1 ? arrived(1) : kMissing));
            CHECK(row(2) == (look < 2 ? 0x1234u : look == 2 ? kMissing : 0u));
            CHECK(row(3) == (look < 2 ? 0x1234u : look == 2 ? kMissing : arrived(3)));
        }
}

enum class Fault { none, copy_to, copy_from, copy_to_global, copy_from_shared, load, load_global };
__global__ void faulty_address(Fault fault, const bf16* global) {
    SIMT_SHARED(bf16, rows, [33 * 8]);
    bf16 own[8] = {};
    kernels::AsyncCopies copies;
    unsigned reg[4];
    const int lane = threadIdx.x;
    bf16* row = rows + lane * 8;
    for (int i = 0; i < 8; ++i) row[i] = own[i];
    switch (fault) {
        case Fault::none: kernels::ldmatrix(reg, row); break;
        case Fault::copy_to: copies.copy(row + 4, global); break;
        case Fault::copy_from: copies.copy(row, global + 1); break;
        case Fault::copy_to_global: copies.copy(const_cast<bf16*>(global), global); break;
        case Fault::copy_from_shared: copies.copy(row, rows); break;
        case Fault::load: kernels::ldmatrix(reg, lane == 7 ? row + 1 : row); break;
        case Fault::load_global: kernels::ldmatrix_trans(reg, lane == 2 ? global : row); break;
    }
}
constexpr int kProductLine = __LINE__ + 6, kLoadLine = kProductLine + 1;
__global__ void missing_lane(bool loads, int missing) {
    SIMT_SHARED(bf16, rows, [64 * 8]);
    float d[4] = {};
    FragmentA a{};
    if (int(threadIdx.x) == missing) return;
    if (!loads) kernels::mma_m16n8k16(d, a, FragmentB{});
    else kernels::ldmatrix(a.reg, rows + threadIdx.x * 8);
}
template <auto Kernel, class... Args>
std::string fault_of(unsigned threads, Args... args) {
    return test::error_of_launch<Kernel>({.grid = 1, .block = threads}, args...);
}

TEST_CASE("misaligned addresses and addresses in the wrong memory are rejected", "[ptx]") {
    using test::Contains;
    const auto memory = test::on_device(test::normal<bf16>(16, 1));
    const bf16* const global = memory.span().data();
    const auto message = [&](Fault fault) { return fault_of<faulty_address>(32, fault, global); };
    CHECK(message(Fault::none) == "");
    CHECK_THAT(message(Fault::copy_to),
               Contains("kernel ptx_fault_test::faulty_address") && Contains("8 bytes past a multiple of 16"));
    CHECK_THAT(message(Fault::copy_from), Contains("2 bytes past a multiple of 16"));
    CHECK_THAT(message(Fault::copy_to_global), Contains("cp.async writes to an address outside shared memory"));
    CHECK_THAT(message(Fault::copy_from_shared), Contains("cp.async reads shared memory; expected global memory"));
    CHECK_THAT(message(Fault::load), Contains("thread (7, 0, 0)") && Contains("2 bytes past a multiple of 16"));
    CHECK_THAT(message(Fault::load_global),
               Contains("thread (2, 0, 0)") && Contains("ldmatrix reads an address outside shared memory"));
}

TEST_CASE("lanes that never reach a product or a load are reported", "[ptx]") {
    using test::Contains;
    for (bool loads : {false, true}) {
        const auto message = fault_of<missing_lane>(64, loads, 40);
        CHECK_THAT(message, Contains("kernel ptx_fault_test::missing_lane, block (0, 0, 0) of 64 threads") &&
                   Contains("threads 0-31, 40 have exited"));
        const std::string name = loads ? "ldmatrix" : "mma.sync";
        CHECK_THAT(message,
                   Contains("threads 32-39, 41-63 wait in " + name + " at ") && Contains("with mask 0xffffffff"));
        CHECK_THAT(message, Contains("ptx_fault_test.cu:" + std::to_string(loads ? kLoadLine : kProductLine)));
        CHECK_THAT(fault_of<missing_lane>(40, loads, -1),
                   Contains(name + " needs the 32 lanes of a whole warp; this warp has 8"));
        CHECK_THAT(fault_of<missing_lane>(1, loads, -1),
                   Contains(name + " needs the 32 lanes of a whole warp; this warp has 1"));
    }
}

}  // namespace ptx_fault_test
