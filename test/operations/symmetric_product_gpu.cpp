// symmetric_product_gpu.cpp - the symmetric products of Newton-Schulz by half of their tiles
#include "kernels/matmul/symmetric_product.h"

#include "test/operations/operation.h"
#include "test/operations/products.h"

namespace operations::symmetric_product_operation {
namespace {

// Then: bit 1 transposes, bit 2 adds.
template <class T>
struct SymmetricProduct : Operation {
    int m, k, batch;
    bool transposed, adds;
    Tensor<T> x, addend, out;
    static constexpr float kAlpha = 0.75f, kBeta = -1.5f;

    explicit SymmetricProduct(const Shape& s)
        : m(s[0]), k(s[1]), batch(s[2]), transposed(s[3] & 1), adds(s[3] & 2),
          x(input<T>("x", std::size_t(batch) * m * k, {.deviation = 1 / std::sqrt(std::sqrt(k))})),
          addend(input<T>("addend", adds ? std::size_t(batch) * m * m : 0)),
          out(output<T>("out", std::size_t(batch) * m * m)) {
        flops = 1.0 * batch * m * (m + 1) * k;
        bytes = double(x.storage().size + addend.storage().size + out.storage().size) * sizeof(T);
    }
    static bool applies(const Shape& s) {
        constexpr int kMultiple = 16 / sizeof(T);
        return s[0] % kMultiple == 0 && s[1] % kMultiple == 0;
    }
    void run(device::StreamRef stream) override {
        kernels::symmetric_product<T>({.out = out, .x = x, .addend = addend, .m = m, .k = k, .batch = batch,
                                       .transposed = transposed, .alpha = kAlpha, .beta = adds ? kBeta : 0}, stream);
    }
    // The addend of this test is not symmetric: only its lower triangle counts.
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(std::size_t(batch) * m, [&, a = v[x], c = v[addend], d = v[out]](std::size_t row) {
            const std::size_t item = row / m, first = item * m * k;
            for (std::size_t j = 0; j < std::size_t(m); ++j) {
                const std::size_t low = std::max(row % m, j), high = std::min(row % m, j);
                Products<N> products;
                for (std::size_t i = 0; i < std::size_t(k); ++i)
                    products.add(a[first + (transposed ? i * m + low : low * k + i)],
                                 a[first + (transposed ? i * m + high : high * k + i)]);
                d[row * m + j] = N(kAlpha) * products.result(k);
                if (adds) d[row * m + j] += N(kBeta) * N(c[item * m * m + low * m + high]);
            }
        });
    }
};

// Parts of a tile and of a buffer of k; several tiles, of which the last ones are parts; a batch.
std::vector<Shape> symmetric_products() {
    return with_each({{8, 8, 1}, {4, 20, 2}, {136, 72, 2}, {264, 40, 1}, {128, 64, 3}}, {0, 1, 2, 3});
}
// Of Newton-Schulz for a layer of GPT-2 124M: gram and polynomial of (768, 768), gram of (768, 3072) and (3072, 768).
// Compare with the "scaled product" of the library.
std::vector<Shape> of_newton_schulz() {
    return {{768, 768, 4, 0}, {768, 768, 4, 2}, {768, 3072, 2, 0}, {768, 3072, 2, 1}};
}
const Registered symmetric_product({.name = "symmetric product", .tag = "[symmetric_product][muon]",
                                    .dimensions = {"m", "k", "batch", "form"}, .edges = symmetric_products(),
                                    .small = of_newton_schulz(), .large = of_newton_schulz(),
                                    .make = make<SymmetricProduct>});

}  // namespace
}  // namespace operations::symmetric_product_operation
