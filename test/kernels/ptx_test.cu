// ptx_test.cu - the tensor-core functions of ptx.cuh compared with the tables of NVIDIA's PTX ISA, cited by section
// title
//
// The tables are written here as in the ISA, by element of a fragment; host code and kernels use them to fill and read
// registers.
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/ptx.cuh"
#include "test/support/catch.h"
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
__global__ void one_of_a(float* out, const bf16* b) {
    const int lane = threadIdx.x, i = blockIdx.x % 8;
    FragmentA a{};
    if (lane == int(blockIdx.x / 8)) a.reg[i / 2] = kOne << 16 * (i % 2);
    float d[4] = {};
    kernels::mma_m16n8k16(d, a, fill_b(b, lane));
    for (int k = 0; k < 4; ++k) out[(blockIdx.x * 32 + lane) * 4 + k] = d[k];
}
__global__ void one_of_b(float* out, const bf16* a) {
    const int lane = threadIdx.x, i = blockIdx.x % 4;
    FragmentB b{};
    if (lane == int(blockIdx.x / 4)) b.reg[i / 2] = kOne << 16 * (i % 2);
    float d[4] = {};
    kernels::mma_m16n8k16(d, fill_a(a, lane), b);
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
    simt::launch<one_of_a>({.grid = 32 * 8, .block = 32}, out.span().data(), static_cast<const bf16*>(b.span().data()));
    const auto with_a = out.download(nullptr);
    simt::launch<one_of_b>({.grid = 32 * 4, .block = 32}, out.span().data(), static_cast<const bf16*>(a.span().data()));
    const auto with_b = out.download(nullptr);
    for (int lane = 0; lane < 32; ++lane)
        for (int k = 0; k < 4; ++k) {
            const auto [row, column] = element_of_c(lane, k);
            for (int one = 0; one < 32 * 8; ++one) {
                const auto [m, inner] = element_of_a(one / 8, one % 8);
                CAPTURE(lane, k, one / 8, one % 8);
                REQUIRE(with_a[(one * 32 + lane) * 4 + k] == (row == m ? float(inner * 8 + column + 1) : 0.0f));
            }
            for (int one = 0; one < 32 * 4; ++one) {
                const auto [inner, n] = element_of_b(one / 4, one % 4);
                CAPTURE(lane, k, one / 4, one % 4);
                REQUIRE(with_b[(one * 32 + lane) * 4 + k] == (column == n ? float(row * 16 + inner + 1) : 0.0f));
            }
        }
}

// Compares |got - c - a b| with the maximum error of adding `inner` exact products, each addition rounded or truncated
// to float (tensor cores truncate).
void check_product(const std::vector<float>& got, const std::vector<float>& c, const std::vector<bf16>& a,
                   const std::vector<bf16>& b, int rows, int columns, int inner) {
    for (int m = 0; m < rows; ++m)
        for (int n = 0; n < columns; ++n) {
            double sum = c[m * columns + n], magnitude = std::fabs(sum);
            for (int k = 0; k < inner; ++k) {
                const double product = test::widen(a[m * inner + k]) * test::widen(b[k * columns + n]);
                sum += product;
                magnitude += std::fabs(product);
            }
            CAPTURE(m, n, got[m * columns + n], sum);
            REQUIRE(std::fabs(got[m * columns + n] - sum) <= inner * std::ldexp(magnitude, -23));
        }
}

__global__ void one_tile(float* c, const bf16* a, const bf16* b) {
    const int lane = threadIdx.x;
    float d[4];
    for (int i = 0; i < 4; ++i) d[i] = c[element_of_c(lane, i).row * 8 + element_of_c(lane, i).column];
    kernels::mma_m16n8k16(d, fill_a(a, lane), fill_b(b, lane));
    for (int i = 0; i < 4; ++i) c[element_of_c(lane, i).row * 8 + element_of_c(lane, i).column] = d[i];
}

TEST_CASE("a product of random matrices is added to D", "[ptx]") {
    const unsigned seed = GENERATE(1u, 2u, 3u, 4u);
    const auto a = test::normal<bf16>(16 * 16, seed), b = test::normal<bf16>(16 * 8, seed + 10);
    const auto c = test::normal<float>(16 * 8, seed + 20);
    const auto a_device = test::on_device(a), b_device = test::on_device(b);
    const auto d = test::on_device(c);
    simt::launch<one_tile>({.grid = 1, .block = 32}, d.span().data(), static_cast<const bf16*>(a_device.span().data()),
                           static_cast<const bf16*>(b_device.span().data()));
    check_product(d.download(nullptr), c, a, b, 16, 8, 16);
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

// A product of 64 x 64 x 64 by four warps of 16 rows each. Slices of 16 along k are double-buffered: one is copied
// while the other is multiplied. A is stored [m][k], or [k][m] if TransposedA; B [k][n], or [n][k] if TransposedB.
constexpr int kSide = 64, kSlice = 16;
template <bool Along>  // whether k runs along the rows of the matrix
struct Slice {
    static constexpr int rows = Along ? kSide : kSlice, columns = Along ? kSlice : kSide, pitch = columns + 8,
                         size = rows * pitch;
    static __device__ void copy(kernels::AsyncCopies& copies, bf16* shared, const bf16* matrix, int k) {
        const int row = threadIdx.x / (columns / 8), column = threadIdx.x % (columns / 8) * 8;
        copies.copy(shared + row * pitch + column,
                    matrix + (Along ? row * kSide + k + column : (k + row) * kSide + column));
    }
};

template <bool TransposedA, bool TransposedB, bool Waits>
__global__ void product(float* out, const bf16* a, const bf16* b) {
    using SliceA = Slice<!TransposedA>;
    using SliceB = Slice<TransposedB>;
    SIMT_SHARED(bf16, tile_a, [2][SliceA::size]);
    SIMT_SHARED(bf16, tile_b, [2][SliceB::size]);
    const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16;
    constexpr int pa = SliceA::pitch, pb = SliceB::pitch;
    kernels::AsyncCopies copies;
    const auto fetch = [&](int k) {
        if (k >= kSide) return;
        SliceA::copy(copies, tile_a[k / kSlice % 2], a, k);
        SliceB::copy(copies, tile_b[k / kSlice % 2], b, k);
    };
    float d[8][4] = {};
    fetch(0);
    for (int k = 0; k < kSide; k += kSlice) {
        if (Waits) copies.wait();
        __syncthreads();
        fetch(k + kSlice);
        const bf16 *at = tile_a[k / kSlice % 2], *bt = tile_b[k / kSlice % 2];
        FragmentA fa;
        if constexpr (TransposedA)
            kernels::ldmatrix_trans(fa.reg, at + first_row + (lane % 8 + lane / 16 * 8) * pa + lane / 8 % 2 * 8);
        else kernels::ldmatrix(fa.reg, at + first_row * pa + lane % 16 * pa + lane / 16 * 8);
        for (int n = 0; n < kSide; n += 16) {
            kernels::FragmentBPair fb;
            if constexpr (TransposedB)
                kernels::ldmatrix(fb.reg, bt + n * pb + (lane % 8 + lane / 16 * 8) * pb + lane / 8 % 2 * 8);
            else kernels::ldmatrix_trans(fb.reg, bt + n + lane % 16 * pb + lane / 16 * 8);
            for (int i = 0; i < 2; ++i) kernels::mma_m16n8k16(d[n / 8 + i], fa, fb[i]);
        }
        __syncthreads();
    }
    for (int n = 0; n < kSide; n += 8)
        for (int i = 0; i < 4; ++i)
            out[(first_row + element_of_c(lane, i).row) * kSide + n + element_of_c(lane, i).column] = d[n / 8][i];
}

std::vector<bf16> transposed(const std::vector<bf16>& matrix, bool transpose) {
    std::vector<bf16> result = matrix;
    if (transpose)
        for (int i = 0; i < kSide * kSide; ++i) result[i] = matrix[i % kSide * kSide + i / kSide];
    return result;
}
template <bool TransposedA, bool TransposedB, bool Waits>
std::vector<float> multiply(const std::vector<bf16>& a, const std::vector<bf16>& b) {
    const auto a_device = test::on_device(transposed(a, TransposedA)),
               b_device = test::on_device(transposed(b, TransposedB));
    auto out = test::poisoned<float>(kSide * kSide);
    simt::launch<product<TransposedA, TransposedB, Waits>>({.grid = 1, .block = 128}, out.span().data(),
        static_cast<const bf16*>(a_device.span().data()), static_cast<const bf16*>(b_device.span().data()));
    return out.download(nullptr);
}

TEMPLATE_TEST_CASE_SIG("a tiled product through cp.async and ldmatrix, for every way to store A and B", "[ptx]",
                       ((bool TransposedA, bool TransposedB), TransposedA, TransposedB), (false, false), (false, true),
                       (true, false), (true, true)) {
    const auto a = test::normal<bf16>(kSide * kSide, 5), b = test::normal<bf16>(kSide * kSide, 6);
    const auto got = multiply<TransposedA, TransposedB, true>(a, b);
    check_product(got, std::vector<float>(kSide * kSide), a, b, kSide, kSide, kSide);
}

// out = bf16(a b) v, where a is 16 x 16, b two adjacent 16 x 8 matrices, and v one: like attention, which multiplies
// its weights by the values.
__global__ void chained(float* out, const bf16* a, const bf16* b, const bf16* v) {
    const int lane = threadIdx.x;
    float left[4] = {}, right[4] = {}, d[4] = {};
    const FragmentA fa = fill_a(a, lane);
    kernels::mma_m16n8k16(left, fa, fill_b(b, lane));
    kernels::mma_m16n8k16(right, fa, fill_b(b + 16 * 8, lane));
    const FragmentA weights{kernels::bf16_pair(left[0], left[1]), kernels::bf16_pair(left[2], left[3]),
                            kernels::bf16_pair(right[0], right[1]), kernels::bf16_pair(right[2], right[3])};
    kernels::mma_m16n8k16(d, weights, fill_b(v, lane));
    for (int i = 0; i < 4; ++i) out[element_of_c(lane, i).row * 8 + element_of_c(lane, i).column] = d[i];
}

TEST_CASE("two adjacent D become the A of the next product", "[ptx]") {
    const auto random = test::normal<double>(16 * 16 + 3 * 16 * 8, 7, 2);
    // integers, so that the order of additions does not matter and everything except the rounding of the weights is
    // exact
    std::vector<bf16> small;
    for (double x : random) small.push_back(kernels::bf16_from_float(float(std::round(x))));
    const auto device = test::on_device(small);
    auto out = test::poisoned<float>(16 * 8);
    const bf16* a = device.span().data();
    simt::launch<chained>({.grid = 1, .block = 32}, out.span().data(), a, a + 256, a + 256 + 256);
    const auto got = out.download(nullptr);
    const auto value = [&](int i) { return test::widen(small[i]); };
    for (int m = 0; m < 16; ++m)
        for (int n = 0; n < 8; ++n) {
            double want = 0;
            for (int j = 0; j < 16; ++j) {
                double weight = 0;
                for (int k = 0; k < 16; ++k) weight += value(m * 16 + k) * value(256 + j / 8 * 128 + k * 8 + j % 8);
                want += test::widen(test::narrow<bf16>(weight)) * value(512 + j * 8 + n);
            }
            REQUIRE(got[m * 8 + n] == float(want));
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

#if !defined(TRAIN_GPT2_CUDA)
// A guarantee of the host executor beyond the ISA, where early reads are undefined; more of them in ptx_fault_test.cu.
TEST_CASE("a kernel that does not wait for its copies computes NaN", "[ptx]") {
    const auto a = test::normal<bf16>(kSide * kSide, 5), b = test::normal<bf16>(kSide * kSide, 6);
    for (float x : multiply<false, false, false>(a, b)) REQUIRE(std::isnan(x));
}
#endif

}  // namespace ptx_test
