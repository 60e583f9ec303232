// ptx_test.cu - the tensor-core functions of ptx.cuh compared with the tables of NVIDIA's PTX ISA, cited by section
// title
//
// The tables are written here as in the ISA, by element of a fragment; host code and kernels use them to fill and read
// registers.
#include "kernels/ptx.cuh"
#include "test/support/support.h"

// Named: nvcc cannot tell an unnamed namespace from those that Catch2's templates open within it.
namespace ptx_test {

using kernels::bf16;
using kernels::FragmentA;
using kernels::FragmentB;

// ---- PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"; two elements per register, the first one
// in the low half

struct Element { int row, column; };
__host__ __device__ constexpr int group_id(int lane) { return lane >> 2; }
__host__ __device__ constexpr int thread_id_in_group(int lane) { return lane % 4; }
__host__ __device__ constexpr Element element_of_a(int lane, int i) {
    return {(0 <= i && i < 2) || (4 <= i && i < 6) ? group_id(lane) : group_id(lane) + 8,
            i < 4 ? thread_id_in_group(lane) * 2 + (i & 1) : thread_id_in_group(lane) * 2 + (i & 1) + 8};
}
__host__ __device__ constexpr Element element_of_b(int lane, int i) {
    return {i < 2 ? thread_id_in_group(lane) * 2 + (i & 1) : thread_id_in_group(lane) * 2 + (i & 1) + 8,
            group_id(lane)};
}
__host__ __device__ constexpr Element element_of_c(int lane, int i) {
    return {i < 2 ? group_id(lane) : group_id(lane) + 8, thread_id_in_group(lane) * 2 + (i & 1)};
}

// ---- PTX ISA, "Warp-level matrix load instruction: ldmatrix", .m8n8 .b16
// Row addresses: threads 0-7 pass those of the first matrix, 8-15 of the second, 16-23 of the third, 24-31 of the
// fourth.
// Fragments: row r (with .trans column r) is distributed over threads 4 r to 4 r + 3, two neighbouring elements each,
// the first one in the low half.

struct Source { int lane, element; };  // the lane that passes the row's address, and the element's index in the row
constexpr Source source_of(int lane, int matrix, int half, bool transposed) {
    const int major = lane / 4, minor = lane % 4 * 2 + half;
    return transposed ? Source{8 * matrix + minor, major} : Source{8 * matrix + major, minor};
}

__device__ unsigned joined(bf16 low, bf16 high) { return low.bits | unsigned(high.bits) << 16; }
__device__ FragmentA fill_a(const bf16* matrix, int lane) {
    const auto at = [&](int i) { return matrix[element_of_a(lane, i).row * 16 + element_of_a(lane, i).column]; };
    return {joined(at(0), at(1)), joined(at(2), at(3)), joined(at(4), at(5)), joined(at(6), at(7))};
}
__device__ FragmentB fill_b(const bf16* matrix, int lane) {
    const auto at = [&](int i) { return matrix[element_of_b(lane, i).row * 8 + element_of_b(lane, i).column]; };
    return {joined(at(0), at(1)), joined(at(2), at(3))};
}

// Block i: the registers of A, or of B, are zero except for a one in element i % elements of lane i / elements; the
// other operand is a full matrix.
constexpr unsigned kOne = 0x3f80;
constexpr float kBefore = 512;  // in D; all sums are exact
template <bool OfA>
__global__ void one_element(float* out, const bf16* full) {
    constexpr int kElements = OfA ? 8 : 4;
    const int lane = threadIdx.x, i = blockIdx.x % kElements;
    std::conditional_t<OfA, FragmentA, FragmentB> one{};
    if (lane == int(blockIdx.x / kElements)) one.reg[i / 2] = kOne << 16 * (i % 2);
    float d[4] = {kBefore, kBefore, kBefore, kBefore};
    if constexpr (OfA) kernels::mma_m16n8k16(d, one, fill_b(full, lane));
    else kernels::mma_m16n8k16(d, fill_a(full, lane), one);
    for (int k = 0; k < 4; ++k) out[(blockIdx.x * 32 + lane) * 4 + k] = d[k];
}

// 1, 2, 3, ...: up to 256 they are exact in bf16.
std::vector<bf16> counted(int size) {
    std::vector<bf16> values;
    for (int i = 1; i <= size; ++i) values.push_back(kernels::bf16_from_float(float(i)));
    return values;
}

TEST_CASE("every register of A, B and D holds the elements that the PTX ISA specifies", "[ptx]") {
    const auto a = test::on_device(counted(16 * 16)), b = test::on_device(counted(16 * 8));
    auto out = test::poisoned<float>(32 * 8 * 32 * 4);
    simt::launch<one_element<true>>({.grid = 32 * 8, .block = 32}, out.span().data(),
                                    static_cast<const bf16*>(b.span().data()));
    const auto with_a = out.download(nullptr);
    simt::launch<one_element<false>>({.grid = 32 * 4, .block = 32}, out.span().data(),
                                    static_cast<const bf16*>(a.span().data()));
    const auto with_b = out.download(nullptr);
    for (int lane = 0; lane < 32; ++lane)
        for (int k = 0; k < 4; ++k) {
            const auto [row, column] = element_of_c(lane, k);
            for (int one = 0; one < 32 * 8; ++one) {
                const auto [m, inner] = element_of_a(one / 8, one % 8);
                CAPTURE(lane, k, one / 8, one % 8);
                const float want = kBefore + (row == m ? float(inner * 8 + column + 1) : 0.0f);
                REQUIRE(with_a[(one * 32 + lane) * 4 + k] == want);
            }
            for (int one = 0; one < 32 * 4; ++one) {
                const auto [inner, n] = element_of_b(one / 4, one % 4);
                CAPTURE(lane, k, one / 4, one % 4);
                const float want = kBefore + (column == n ? float(row * 16 + inner + 1) : 0.0f);
                REQUIRE(with_b[(one * 32 + lane) * 4 + k] == want);
            }
        }
}

// Lane l passes the address of slot (5 l + 3) % 32, which holds 8 l, ..., 8 l + 7.
template <bool Transposed>
__global__ void load_matrices(unsigned* out) {
    SIMT_SHARED(bf16, slots, [32 * 8]);
    const int lane = threadIdx.x;
    bf16* row = slots + (5 * lane + 3) % 32 * 8;
    for (int i = 0; i < 8; ++i) row[i].bits = lane * 8 + i;
    __syncwarp();
    unsigned reg[4];
    if constexpr (Transposed) kernels::ldmatrix_trans(reg, row);
    else kernels::ldmatrix(reg, row);
    for (int j = 0; j < 4; ++j) out[lane * 4 + j] = reg[j];
}

TEMPLATE_TEST_CASE_SIG("ldmatrix gives every lane the elements that the PTX ISA specifies", "[ptx]",
                       ((bool Transposed), Transposed), false, true) {
    auto out = test::poisoned<unsigned>(32 * 4);
    simt::launch<load_matrices<Transposed>>({.grid = 1, .block = 32}, out.span().data());
    const auto reg = out.download(nullptr);
    for (int lane = 0; lane < 32; ++lane)
        for (int matrix = 0; matrix < 4; ++matrix)
            for (int half = 0; half < 2; ++half) {
                const auto [from, element] = source_of(lane, matrix, half, Transposed);
                CAPTURE(lane, matrix, half);
                REQUIRE((reg[lane * 4 + matrix] >> 16 * half & 0xffff) == unsigned(from * 8 + element));
            }
}

__global__ void pairs(unsigned* out, const float* x) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    out[i] = kernels::bf16_pair(x[2 * i], x[2 * i + 1]);
}

TEST_CASE("bf16_pair rounds to nearest, ties to even", "[ptx]") {
    auto x = test::normal<float>(64 * 32, 8);
    for (int i = 0; i < 32; ++i) x[i] = 1.0f + float(i) / 256;  // every second one is a tie
    x[40] = INFINITY, x[41] = -INFINITY, x[42] = -0.0f, x[43] = NAN, x[44] = 3.4e38f;
    const auto device = test::on_device(x);
    auto out = test::poisoned<unsigned>(32 * 32);
    simt::launch<pairs>({.grid = 32, .block = 32}, out.span().data(), static_cast<const float*>(device.span().data()));
    const auto got = out.download(nullptr);
    for (std::size_t i = 0; i < x.size(); ++i)
        REQUIRE((got[i / 2] >> 16 * (i % 2) & 0xffff) == kernels::bf16_from_float(x[i]).bits);
}

__global__ void watch_copies(unsigned short* seen, const bf16* from) {
    SIMT_SHARED(bf16, rows, [32 * 8]);
    bf16* const mine = rows + threadIdx.x * 8;  // of this thread alone: no barrier is needed
    unsigned short* look = seen + threadIdx.x * 4;
    kernels::AsyncCopies copies;
    mine[7].bits = 0x1234;
    *look++ = mine[7].bits;
    copies.copy(mine, from + threadIdx.x * 8);
    *look++ = mine[7].bits;
    copies.wait();
    *look++ = mine[7].bits;
    copies.copy(mine, nullptr, false);
    copies.wait();
    *look++ = mine[7].bits;
}

TEST_CASE("copies complete when they are waited for, and not earlier", "[ptx]") {
    const int threads = GENERATE(1, 32);
    const auto from = test::on_device(counted(32 * 8));
    auto seen = test::poisoned<unsigned short>(32 * 4);
    simt::launch<watch_copies>({.grid = 1,
                                .block = threads}, seen.span().data(), static_cast<const bf16*>(from.span().data()));
    const auto got = seen.download(nullptr);
    for (int thread = 0; thread < threads; ++thread) {
        const std::vector<unsigned short> looks(got.begin() + thread * 4, got.begin() + thread * 4 + 4);
        const auto copied = kernels::bf16_from_float(float(thread * 8 + 8)).bits;
        CHECK(looks == std::vector<unsigned short>{0x1234, 0xffff, copied, 0});
    }
}

}  // namespace ptx_test
