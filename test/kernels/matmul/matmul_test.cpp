// matmul_test.cpp - cached plans, and the description of the library (results of products:
// operations/linear.cpp)
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/device/memory.h"
#include "kernels/matmul/matmul.h"
#include "test/support/support.h"

using namespace kernels;
using test::Contains;
using test::on_device;
using test::poisoned;
using test::same_bits;

namespace {

struct Sizes {
    int rows, in, out;
};

// One linear layer with random tensors.
template <class T> struct Layer {
    Sizes shape;
    std::vector<T> in, weight, bias, dout, in_pre;
    std::vector<float> old_dweight, old_dbias;

    Layer(Sizes s, unsigned seed)
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
        const auto in_there = on_device(in), weight_there = on_device(weight),
                   bias_there = on_device(with_bias ? bias : std::vector<T>());
        matmul.forward<T>({out.span(), pre.span(), in_there.span(), weight_there.span(), bias_there.span(), shape.rows,
                           shape.in, shape.out},
                          nullptr);
        return {out.download(nullptr), pre.download(nullptr)};
    }
    std::vector<T> backward_input(Matmul& matmul, bool with_gelu) const {
        auto din = poisoned<T>(std::size_t(shape.rows) * shape.in);
        const auto dout_there = on_device(dout), weight_there = on_device(weight),
                   pre_there = on_device(with_gelu ? in_pre : std::vector<T>());
        matmul.backward_input<T>(
            {din.span(), dout_there.span(), weight_there.span(), pre_there.span(), shape.rows, shape.in, shape.out},
            nullptr);
        return din.download(nullptr);
    }
    struct Gradients {
        std::vector<float> dweight, dbias;
    };
    Gradients backward_weight(Matmul& matmul, bool with_bias, bool accumulate) const {
        auto dweight = accumulate ? on_device(old_dweight) : poisoned<float>(old_dweight.size());
        auto dbias = !with_bias   ? device::Array<float>()
                     : accumulate ? on_device(old_dbias)
                                  : poisoned<float>(old_dbias.size());
        const auto dout_there = on_device(dout), in_there = on_device(in);
        matmul.backward_weight<T>({dweight.span(), dbias.span(), dout_there.span(), in_there.span(), shape.rows,
                                   shape.in, shape.out, accumulate},
                                  nullptr);
        return {dweight.download(nullptr), dbias.download(nullptr)};
    }
};

template <class T, Bf16Arithmetic How> struct Variant {
    using type = T;
    static constexpr MatmulSettings settings{.bf16 = How};
};
using Fp32 = Variant<float, Bf16Arithmetic::measure>;
using Native = Variant<bf16, Bf16Arithmetic::native>;
using Widened = Variant<bf16, Bf16Arithmetic::widen>;

}  // namespace

// operations/linear.cpp checks the results of a new object.
TEMPLATE_TEST_CASE("a cached plan is bit-identical for other tensors of its shape, in each of two objects",
                   "[matmul]", Fp32, Native, Widened) {
    using T = typename TestType::type;
    Matmul first(TestType::settings), other(TestType::settings);
    Matmul moved(std::move(other));
    for (unsigned seed = 0; seed < 2; ++seed)
        for (const Sizes& shape : {Sizes{6, 48, 80}, Sizes{9, 48, 80}, Sizes{6, 80, 48}, Sizes{300, 784, 1040}}) {
            CAPTURE(seed, shape.rows, shape.in, shape.out);
            const Layer<T> layer(shape, 1000 + 10 * seed);
            Matmul fresh(TestType::settings);
            const auto forward = layer.forward(fresh, true, true);
            const auto din = layer.backward_input(fresh, true);
            const auto gradients = layer.backward_weight(fresh, true, true);
            for (Matmul* matmul : {&first, &moved}) {
                const auto forward_again = layer.forward(*matmul, true, true);
                const auto gradients_again = layer.backward_weight(*matmul, true, true);
                CHECK(same_bits(forward.out, forward_again.out));
                CHECK(same_bits(forward.pre, forward_again.pre));
                CHECK(same_bits(din, layer.backward_input(*matmul, true)));
                CHECK(same_bits(gradients.dweight, gradients_again.dweight));
                CHECK(same_bits(gradients.dbias, gradients_again.dbias));
            }
        }
}

TEST_CASE("Matmul::describe() names the library and its bf16 arithmetic", "[matmul]") {
    Matmul widened({.bf16 = Bf16Arithmetic::widen}), measured;
    for (Matmul* matmul : {&widened, &measured}) Layer<bf16>({4, 16, 16}, 1).forward(*matmul, true, true);
    if (widened.describe(DType::bf16).find("oneDNN") == std::string::npos) {
        CHECK_THAT(widened.describe(DType::bf16), Contains("cuBLASLt"));
        return;
    }
    CHECK_THAT(widened.describe(DType::bf16), Contains("bf16 widened to fp32 as requested"));
    CHECK_THAT(measured.describe(DType::bf16),
               Contains("bf16 multiplied natively (") || Contains("bf16 widened to fp32"));
    CHECK(widened.workspace_bytes() > 0);
}
