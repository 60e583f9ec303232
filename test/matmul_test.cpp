// matmul_test.cpp - the three products of a linear layer against fp64, for every way in which bf16 may be multiplied
#include <cstdlib>
#include <cstring>

#include "kernels/matmul.h"
#include "test/support.h"

using namespace kernels;
using test::DeviceArray;
using test::on_device;
using test::poisoned;
using test::widen;

namespace {

constexpr double kHalfUlpOfOne = 5.960464477539063e-08;  // 2^-24: relative cost of one rounding in float

// tanh is to 4e-7 absolute in our own kernels (math.cuh); the GPU's instruction, which a library may use in a bf16 epilogue, is to 2^-11.
#if defined(TRAIN_GPT2_CUDA)
template <class T> constexpr double kTanhError = std::is_same_v<T, bf16> ? 4.8828125e-04 : 4e-7;
#else
template <class T> constexpr double kTanhError = 4e-7;
#endif

struct Shape {
    int rows, in, out;
};

// A value and how far a result may be from it.
struct Bounded {
    double value = 0, slack = 0;
};

// A sum of `terms` float products in any order: errors of the additions grow like a random walk, sqrt(terms) roundings of the sum of magnitudes.
Bounded sum(double value, double magnitude, int terms) { return {value, (4 + std::sqrt(terms)) * kHalfUlpOfOne * magnitude}; }

// After rounding to T.
template <class T> Bounded stored(Bounded x) { return {x.value, x.slack + 0.5 * test::ulp<T>(std::fabs(x.value) + x.slack)}; }

double gate(double x) { return 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu(double x) { return x * gate(x); }
double gelu_slope(double x) {
    const double g = gate(x);
    return g + x * g * (1 - g) * 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}
constexpr double kSteepest = 1.13;    // the largest slope of GELU
constexpr double kMostCurved = 1.13;  // and the largest slope of that slope

// value (m, n) = left (m, k) right (k, n), each given by a function of two indices.
template <class Left, class Right>
std::vector<Bounded> product(int m, int n, int k, Left left, Right right) {
    std::vector<double> value(std::size_t(m) * n), magnitude(value.size());
    for (int i = 0; i < m; ++i)
        for (int p = 0; p < k; ++p)
            for (int j = 0; j < n; ++j) {
                const double term = left(i, p) * right(p, j);
                value[std::size_t(i) * n + j] += term;
                magnitude[std::size_t(i) * n + j] += std::fabs(term);
            }
    std::vector<Bounded> result;
    for (std::size_t i = 0; i < value.size(); ++i) result.push_back(sum(value[i], magnitude[i], k));
    return result;
}

template <class T> void check(const char* name, const std::vector<T>& got, const std::vector<Bounded>& want) {
    REQUIRE(got.size() == want.size());
    std::size_t wrong = 0, first = 0;
    for (std::size_t i = want.size(); i-- > 0;)
        if (!(std::fabs(widen(got[i]) - want[i].value) <= want[i].slack)) ++wrong, first = i;
    INFO(name << ": " << wrong << " of " << want.size() << " elements are off, the first at " << first << ": got " << widen(got[first]) << ", want "
              << want[first].value << " to " << want[first].slack);
    CHECK(wrong == 0);
}

// One linear layer with random tensors and what comes out of it.
template <class T> struct Layer {
    Shape shape;
    std::vector<T> in, weight, bias, dout, in_pre;
    std::vector<float> old_dweight, old_dbias;

    Layer(Shape s, unsigned seed)
        : shape(s),
          in(test::normal<T>(std::size_t(s.rows) * s.in, seed)),
          weight(test::normal<T>(std::size_t(s.out) * s.in, seed + 1, 1 / std::sqrt(s.in))),
          bias(test::normal<T>(s.out, seed + 2)),
          dout(test::normal<T>(std::size_t(s.rows) * s.out, seed + 3)),
          in_pre(test::normal<T>(std::size_t(s.rows) * s.in, seed + 4)),
          old_dweight(test::normal<float>(std::size_t(s.out) * s.in, seed + 5, 3)),
          old_dbias(test::normal<float>(s.out, seed + 6, 3)) {}

    struct Forward {
        std::vector<T> out, pre;
    };
    Forward forward(Matmul& matmul, bool with_bias, bool with_gelu) const {
        const std::size_t size = std::size_t(shape.rows) * shape.out;
        auto out = poisoned<T>(size), pre = poisoned<T>(with_gelu ? size : 0);
        const auto in_there = on_device(in), weight_there = on_device(weight), bias_there = on_device(with_bias ? bias : std::vector<T>());
        matmul.forward<T>({out.span(), pre.span(), in_there.span(), weight_there.span(), bias_there.span(), shape.rows, shape.in, shape.out},
                          nullptr);
        return {out.download(nullptr), pre.download(nullptr)};
    }
    std::vector<T> backward_input(Matmul& matmul, bool with_gelu) const {
        auto din = poisoned<T>(std::size_t(shape.rows) * shape.in);
        const auto dout_there = on_device(dout), weight_there = on_device(weight), pre_there = on_device(with_gelu ? in_pre : std::vector<T>());
        matmul.backward_input<T>({din.span(), dout_there.span(), weight_there.span(), pre_there.span(), shape.rows, shape.in, shape.out}, nullptr);
        return din.download(nullptr);
    }
    struct Gradients {
        std::vector<float> dweight, dbias;
    };
    Gradients backward_weight(Matmul& matmul, bool with_bias, bool accumulate) const {
        auto dweight = accumulate ? on_device(old_dweight) : poisoned<float>(old_dweight.size());
        auto dbias = !with_bias ? DeviceArray<float>() : accumulate ? on_device(old_dbias) : poisoned<float>(old_dbias.size());
        const auto dout_there = on_device(dout), in_there = on_device(in);
        matmul.backward_weight<T>({dweight.span(), dbias.span(), dout_there.span(), in_there.span(), shape.rows, shape.in, shape.out, accumulate},
                                  nullptr);
        return {dweight.download(nullptr), dbias.download(nullptr)};
    }

    void check_forward(const Forward& got, bool with_bias, bool with_gelu) const {
        const auto in_wide = widen(in), weight_wide = widen(weight), bias_wide = widen(bias);
        auto linear = product(shape.rows, shape.out, shape.in, [&](int i, int p) { return in_wide[std::size_t(i) * shape.in + p]; },
                              [&](int p, int j) { return weight_wide[std::size_t(j) * shape.in + p]; });
        std::vector<Bounded> pre, out;
        for (std::size_t i = 0; i < linear.size(); ++i) {
            Bounded x = linear[i];
            if (with_bias) {
                const double b = bias_wide[i % shape.out];
                x.value += b;
                x.slack += kHalfUlpOfOne * (std::fabs(b) + std::fabs(x.value));
            }
            const Bounded rounded = stored<T>(x);
            pre.push_back(rounded);
            if (!with_gelu) out.push_back(rounded);
            else out.push_back(stored<T>({gelu(x.value), kSteepest * rounded.slack + 0.5 * kTanhError<T> * std::fabs(x.value) + 4 * kHalfUlpOfOne}));
        }
        if (with_gelu) check("pre", got.pre, pre);
        check("out", got.out, out);
    }
    void check_backward_input(const std::vector<T>& got, bool with_gelu) const {
        const auto dout_wide = widen(dout), weight_wide = widen(weight), pre_wide = widen(in_pre);
        auto linear = product(shape.rows, shape.in, shape.out, [&](int i, int p) { return dout_wide[std::size_t(i) * shape.out + p]; },
                              [&](int p, int j) { return weight_wide[std::size_t(p) * shape.in + j]; });
        for (std::size_t i = 0; i < linear.size(); ++i) {
            Bounded& x = linear[i];
            x = stored<T>(x);
            if (!with_gelu) continue;
            const double slope_slack = kMostCurved * kTanhError<T> * (1 + std::fabs(pre_wide[i])) + 16 * kHalfUlpOfOne;
            x = stored<T>({x.value * gelu_slope(pre_wide[i]), kSteepest * x.slack + slope_slack * std::fabs(x.value)});
        }
        check("din", got, linear);
    }
    void check_backward_weight(const Gradients& got, bool with_bias, bool accumulate) const {
        const auto dout_wide = widen(dout), in_wide = widen(in);
        auto dweight = product(shape.out, shape.in, shape.rows, [&](int i, int p) { return dout_wide[std::size_t(p) * shape.out + i]; },
                               [&](int p, int j) { return in_wide[std::size_t(p) * shape.in + j]; });
        auto dbias = product(shape.out, 1, shape.rows, [&](int i, int p) { return dout_wide[std::size_t(p) * shape.out + i]; },
                             [](int, int) { return 1.0; });
        const auto add = [](std::vector<Bounded>& to, const std::vector<float>& old, int terms) {
            for (std::size_t i = 0; i < to.size(); ++i) {
                to[i].value += old[i];
                to[i].slack += (4 + std::sqrt(terms)) * kHalfUlpOfOne * std::fabs(old[i]);
            }
        };
        if (accumulate) add(dweight, old_dweight, shape.rows), add(dbias, old_dbias, shape.rows);
        check("dweight", got.dweight, dweight);
        if (with_bias) check("dbias", got.dbias, dbias);
    }
};

// One row, odd rows, narrow channels, and every edge of the pieces in which bf16 is widened (512 rows, 1024 columns, 768 in between).
const Shape kShapes[] = {{1, 16, 48},  {3, 48, 80},    {37, 80, 16},    {5, 768, 768},  {300, 48, 64},
                         {520, 16, 16}, {520, 784, 16}, {520, 16, 1040}, {3, 784, 1040}, {4, 1040, 784}, {800, 1040, 16}};

template <class T, Bf16Arithmetic How> struct Case {
    using type = T;
    static constexpr MatmulOptions options{.bf16 = How};
};
using Fp32 = Case<float, Bf16Arithmetic::measure>;
using Measured = Case<bf16, Bf16Arithmetic::measure>;
using Native = Case<bf16, Bf16Arithmetic::native>;
using Widened = Case<bf16, Bf16Arithmetic::widen>;

template <class T> bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("a linear layer's products equal fp64", "[matmul]", Fp32, Measured, Native, Widened) {
    using T = typename TestType::type;
    Matmul matmul(TestType::options);
    for (const Shape& shape : kShapes) {
        CAPTURE(shape.rows, shape.in, shape.out);
        const Layer<T> layer(shape, 100);
        for (const bool with_bias : {false, true}) {
            CAPTURE(with_bias);
            for (const bool with_gelu : {false, true}) {
                CAPTURE(with_gelu);
                layer.check_forward(layer.forward(matmul, with_bias, with_gelu), with_bias, with_gelu);
            }
            for (const bool accumulate : {false, true}) {
                CAPTURE(accumulate);
                layer.check_backward_weight(layer.backward_weight(matmul, with_bias, accumulate), with_bias, accumulate);
            }
        }
        for (const bool with_gelu : {false, true}) {
            CAPTURE(with_gelu);
            layer.check_backward_input(layer.backward_input(matmul, with_gelu), with_gelu);
        }
    }
}

TEMPLATE_TEST_CASE("a plan is used again for other tensors of its shape, by each of two objects", "[matmul]", Fp32, Native, Widened) {
    using T = typename TestType::type;
    Matmul first(TestType::options), other(TestType::options);
    Matmul moved(std::move(other));
    for (unsigned seed = 0; seed < 3; ++seed)
        for (Matmul* matmul : {&first, &moved})
            for (const Shape& shape : {Shape{6, 48, 80}, Shape{9, 48, 80}, Shape{6, 80, 48}}) {
                const Layer<T> layer(shape, 1000 + 10 * seed);
                layer.check_forward(layer.forward(*matmul, true, true), true, true);
                layer.check_backward_input(layer.backward_input(*matmul, false), false);
                layer.check_backward_weight(layer.backward_weight(*matmul, true, true), true, true);
            }
}

TEMPLATE_TEST_CASE("a product gives the same bits again", "[matmul]", Fp32, Native, Widened) {
    using T = typename TestType::type;
    Matmul one(TestType::options), two(TestType::options);
    const Layer<T> layer({300, 784, 1040}, 7);
    const auto forward = layer.forward(one, true, true), forward_again = layer.forward(two, true, true);
    CHECK(same_bits(forward.out, forward_again.out));
    CHECK(same_bits(forward.pre, forward_again.pre));
    CHECK(same_bits(layer.backward_input(one, true), layer.backward_input(two, true)));
    const auto gradients = layer.backward_weight(one, true, true), gradients_again = layer.backward_weight(two, true, true);
    CHECK(same_bits(gradients.dweight, gradients_again.dweight));
    CHECK(same_bits(gradients.dbias, gradients_again.dbias));
}

TEMPLATE_TEST_CASE("a product refuses tensors that do not fit", "[matmul]", float, bf16) {
    using T = TestType;
    Matmul matmul;
    DeviceArray<T> tensor(16 * 16);
    DeviceArray<float> gradient(16 * 16);
    const auto all = tensor.span(), little = tensor.span().subspan(0, 255), none = tensor.span().subspan(0, 0);
    const auto everything = gradient.span(), too_little = gradient.span().subspan(0, 255);
    CHECK_THROWS_WITH(matmul.forward<T>({all, none, all, all, none, 16, 18, 16}, nullptr), Catch::Contains("in_channels of a matrix product is 18"));
    CHECK_THROWS_WITH(matmul.forward<T>({all, none, all, all, none, 16, 16, 18}, nullptr), Catch::Contains("out_channels of a matrix product is 18"));
    CHECK_THROWS_WITH(matmul.forward<T>({all, none, all, all, none, 0, 16, 16}, nullptr), Catch::Contains("rows of a matrix product is 0"));
    CHECK_THROWS_WITH(matmul.forward<T>({little, none, all, all, none, 16, 16, 16}, nullptr), Catch::Contains("size of out is 255"));
    CHECK_THROWS_WITH(matmul.forward<T>({all, little, all, all, none, 16, 16, 16}, nullptr), Catch::Contains("size of pre is 255"));
    CHECK_THROWS_WITH(matmul.forward<T>({all, none, little, all, none, 16, 16, 16}, nullptr), Catch::Contains("size of in is 255"));
    CHECK_THROWS_WITH(matmul.forward<T>({all, none, all, little, none, 16, 16, 16}, nullptr), Catch::Contains("size of weight is 255"));
    CHECK_THROWS_WITH(matmul.forward<T>({all, none, all, all, all.subspan(0, 15), 16, 16, 16}, nullptr), Catch::Contains("size of bias is 15"));
    CHECK_THROWS_WITH(matmul.backward_input<T>({little, all, all, none, 16, 16, 16}, nullptr), Catch::Contains("size of din is 255"));
    CHECK_THROWS_WITH(matmul.backward_input<T>({all, little, all, none, 16, 16, 16}, nullptr), Catch::Contains("size of dout is 255"));
    CHECK_THROWS_WITH(matmul.backward_input<T>({all, all, little, none, 16, 16, 16}, nullptr), Catch::Contains("size of weight is 255"));
    CHECK_THROWS_WITH(matmul.backward_input<T>({all, all, all, little, 16, 16, 16}, nullptr), Catch::Contains("size of pre is 255"));
    CHECK_THROWS_WITH(matmul.backward_weight<T>({too_little, {}, all, all, 16, 16, 16, false}, nullptr), Catch::Contains("size of dweight is 255"));
    CHECK_THROWS_WITH(matmul.backward_weight<T>({everything, everything.subspan(0, 15), all, all, 16, 16, 16, false}, nullptr),
                      Catch::Contains("size of dbias is 15"));
    CHECK_THROWS_WITH(matmul.backward_weight<T>({everything, {}, little, all, 16, 16, 16, false}, nullptr), Catch::Contains("size of dout is 255"));
    CHECK_THROWS_WITH(matmul.backward_weight<T>({everything, {}, all, little, 16, 16, 16, false}, nullptr), Catch::Contains("size of in is 255"));
}

TEST_CASE("a Matmul says what it is and how it multiplies bf16", "[matmul]") {
    Matmul widened({.bf16 = Bf16Arithmetic::widen}), measured;
    for (Matmul* matmul : {&widened, &measured}) Layer<bf16>({4, 16, 16}, 1).forward(*matmul, true, true);
    if (!Catch::contains(widened.describe(DType::bf16), "oneDNN")) {
        CHECK(Catch::contains(widened.describe(DType::bf16), "cuBLASLt"));
        return;
    }
    CHECK(Catch::contains(widened.describe(DType::bf16), "bf16 widened to fp32 as asked"));
    CHECK((Catch::contains(measured.describe(DType::bf16), "bf16 multiplied natively (") || Catch::contains(measured.describe(DType::bf16), "bf16 widened to fp32")));
    CHECK(widened.workspace_bytes() > 0);
}

#if !defined(TRAIN_GPT2_CUDA) && defined(__x86_64__)
// scripts/test.sh runs this with other caps on the library's instructions, which it reads once.
TEST_CASE("bf16 is multiplied natively where instructions for it may be used, and widened where they would be imitated", "[matmul]") {
    const std::string said = Matmul().describe(DType::bf16), asked = Matmul({.bf16 = Bf16Arithmetic::native}).describe(DType::bf16);
    CAPTURE(said, asked);
    const char* cap = std::getenv("ONEDNN_MAX_CPU_ISA");
    const auto uses = [&](const char* instructions) { return Catch::contains(said, std::string(", ") + instructions + "; bf16 "); };
    if (cap) {
        const std::string most(cap);
        if (most == "AVX2" && __builtin_cpu_supports("avx2")) CHECK(uses("AVX2"));
        if (most == "AVX512_CORE" && __builtin_cpu_supports("avx512dq")) CHECK(uses("AVX-512"));
        if (most == "AVX512_CORE_BF16" && __builtin_cpu_supports("avx512bf16")) CHECK(uses("AVX-512 BF16"));
    }
    if (uses("AVX-512 BF16") || uses("AMX")) CHECK(Catch::contains(said, "; bf16 multiplied natively (one thread: "));
    else if (uses("AVX-512") || uses("AVX-512 VNNI")) CHECK(Catch::contains(said, "; bf16 widened to fp32 (one thread: "));
    else CHECK(Catch::contains(said, "; bf16 widened to fp32, because oneDNN has no bf16 products for this processor"));
    const bool possible = !Catch::contains(said, "has no bf16 products");
    CHECK(Catch::contains(asked, possible ? "; bf16 multiplied natively as asked" : "; bf16 widened to fp32, because oneDNN has no bf16 products"));
}
#endif
