// grad_norm.cpp - the squared norm of the gradients of one module, alone and with a copy in bf16
#include "kernels/grad_norm.h"

#include "kernels/device/memory.h"
#include "test/operations/operation.h"

namespace operations::grad_norm_operation {
namespace {

// Sums sixteen squares at a time in float, and these sums in double. With T = bf16 the elements are also rounded to
// bf16.
template <class T>
struct SquaredNorm : Operation {
    std::vector<kernels::NormTile> tiles = tiles_of(shape[0]);
    Tensor<float> elements = input<float>("values", shape[0], {.deviation = 0.01});
    Tensor<double> partial = scratch<double>("partial", tiles.size()), sum = output<double>("sum", 1);
    Tensor<T> rounded = sizeof(T) == 2 ? output<T>("rounded", shape[0]) : Tensor<T>{};
    device::Array<kernels::NormTile> device_tiles{tiles, nullptr};

    explicit SquaredNorm(const Shape& shape) : Operation(shape) { bytes = (sizeof(T) == 2 ? 6.0 : 4.0) * shape[0]; }
    static std::vector<kernels::NormTile> tiles_of(std::int64_t elements) {
        std::vector<kernels::NormTile> tiles;
        kernels::append_tiles(tiles, 0, elements);
        return tiles;
    }
    void run(device::StreamRef stream) override {
        kernels::SquaredNorms op{.partial = partial, .values = elements, .tiles = device_tiles.span()};
        if constexpr (sizeof(T) == 2) op.rounded = rounded;
        kernels::squared_norms(op, stream);
    }
    void collect() override { add_up(partial, sum, [](std::size_t) { return 0; }); }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        const auto x = v[elements];
        const std::size_t size = elements.storage().size, shares = 256, share = (size + shares - 1) / shares;
        std::vector<typename V::Sum> share_sums(shares);
        v.each(shares, [&, x](std::size_t i) {
            typename V::Sum total = 0;
            for (std::size_t first = i * share; first < std::min(size, (i + 1) * share); first += 16) {
                const std::size_t end = std::min({size, (i + 1) * share, first + 16});
                N run = 0;
                for (std::size_t k = first; k < end; ++k) run += N(x[k]) * N(x[k]);
                v.add_in_double(total, run);
                if constexpr (sizeof(T) == 2)
                    for (std::size_t k = first; k < end; ++k) v[rounded][k] = x[k];
            }
            share_sums[i] = total;
        });
        typename V::Sum total = 0;
        for (const auto& part : share_sums) {
            if constexpr (std::is_same_v<N, Rounded>) v.add_in_double(total, part);
            else total += part;
        }
        v[sum][0] = total;
    }
};

// Sizes around the packs of a CPU and a GPU, the runs of a block's threads, and the tiles.
const std::vector<Shape> kEdges{{0}, {1}, {3}, {4}, {15}, {16}, {17}, {1000}, {4095}, {4096}, {4097}, {16383}, {16384},
                                {16385}, {65552}, {262144}, {300007}, {1000003}, {1048576 + 5}};

const Registered squared_norm({.name = "squared norm", .tag = "[grad_norm]", .dimensions = {"elements"},
                               .edges = kEdges, .small = {{1 << 25}}, .large = {{124475904}}, .make = make<SquaredNorm>,
                               .dtypes = {DType::fp32}});
const Registered squared_norm_rounding({.name = "squared norm and rounding", .tag = "[grad_norm]",
                                        .dimensions = {"elements"}, .edges = kEdges, .small = {{1 << 25}},
                                        .large = {{124475904}}, .make = make<SquaredNorm>, .dtypes = {DType::bf16}});

}  // namespace
}  // namespace operations::grad_norm_operation
