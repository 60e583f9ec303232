// outer.cpp - the three passes of an outer step: a worker's change, the mean change, and the update of the anchor
#include "kernels/outer.h"

#include "kernels/device/memory.h"
#include "test/operations/operation.h"

namespace operations::outer_operation {
namespace {

using kernels::NormTile;

constexpr float kLearningRate = 0.7f, kMu = 0.6f;

// The change of one worker, which is also copied to `values`, or the mean change. The first 16 elements are in no tile.
template <bool Copies>
struct OuterNorm : Operation {
    int workers;
    std::vector<NormTile> tiles;
    Tensor<float> values, sums, anchor;
    Tensor<double> partial;
    device::Array<NormTile> device_tiles;

    explicit OuterNorm(const Shape& s)
        : workers(Copies ? 1 : s[1]), tiles(tiles_of(s[0])), sums(input<float>("sums", s[0], {.deviation = 0.04})),
          anchor(input<float>("anchor", s[0], {.deviation = 0.02})),
          partial(output<double>("partial", tiles.size())), device_tiles(tiles, nullptr) {
        if constexpr (Copies) values = in_out<float>("values", s[0]);
        bytes = (Copies ? 12.0 : 8.0) * s[0];
    }
    static std::vector<NormTile> tiles_of(std::int64_t elements) {
        std::vector<NormTile> tiles;
        kernels::append_tiles(tiles, 16, elements - 16);
        return tiles;
    }
    void run(device::StreamRef stream) override {
        if constexpr (Copies) kernels::outer_change({values, sums, anchor, device_tiles.span(), partial}, stream);
        else kernels::outer_mean({sums, anchor, device_tiles.span(), partial, workers}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(tiles.size(), [&, x = v[sums], a = v[anchor], sum = v[partial]](std::size_t t) {
            typename V::Sum total = 0;
            for (auto i = std::size_t(tiles[t].first); i < std::size_t(tiles[t].first + tiles[t].size); ++i) {
                const N y = N(x[i]) / N(float(workers)) - N(a[i]);
                v.add_in_double(total, y * y);
                if constexpr (Copies) v[values][i] = N(x[i]);
            }
            sum[t] = total;
        });
    }
};
template <class> using OuterChange = OuterNorm<true>;
template <class> using OuterMean = OuterNorm<false>;

template <class T>
struct OuterUpdate : Operation {
    int elements, workers;
    Tensor<float> master, anchor, momentum, sums;
    Tensor<double> norm;
    Tensor<T> parameter;  // in fp32 the master weight
    device::Array<kernels::StepScalars> device_step;

    explicit OuterUpdate(const Shape& s)
        : elements(s[0]), workers(s[1]), master(output<float>("master", elements)),
          anchor(in_out<float>("anchor", elements, {.deviation = 0.02})),
          momentum(in_out<float>("momentum", elements, {.deviation = 0.02})),
          sums(input<float>("sums", elements, {.deviation = 0.04})),
          norm(input<double>("norm", 1)),
          device_step(std::vector<kernels::StepScalars>(1), nullptr) {
        if constexpr (sizeof(T) == 2) parameter = output<T>("parameter", elements);
        else parameter = master;
        bytes = double(elements) * (sizeof(T) == 2 ? 26 : 24);
    }
    void run(device::StreamRef stream) override {
        kernels::outer_update<T>({parameter, master, anchor, momentum, sums, norm, device_step.span(), workers,
                                  kLearningRate, kMu}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(std::size_t(elements), [=, this, a = v[anchor], u = v[momentum], sum = v[sums], weight = v[master],
                                       out = v[parameter]](std::size_t i) {
            const N p = N(sum[i]) / N(float(workers)), y = p - N(a[i]);
            u[i] = N(kMu) * N(u[i]) + y;
            a[i] = p + (N(kLearningRate - 1) * y + N(kLearningRate * kMu) * N(u[i]));
            out[i] = weight[i] = N(a[i]);
        });
    }
};

// Around the packs of both devices; less than a tile, a tile, several tiles and a remainder.
const std::vector<Shape> kElements{{0}, {1}, {15}, {16}, {33}, {4112}, {8207}, {70001}};
const std::vector<Shape> kWorkers = with_each(kElements, {1, 3, 8});

const Registered outer_change({.name = "outer change", .tag = "[outer]", .dimensions = {"elements"},
                               .edges = kElements, .small = {{1 << 24}}, .large = {{124475904}},
                               .make = make<OuterChange>, .dtypes = {DType::fp32}});
const Registered outer_mean({.name = "outer mean", .tag = "[outer]", .dimensions = {"elements", "workers"},
                             .edges = kWorkers, .small = {{1 << 24, 4}}, .large = {{124475904, 4}},
                             .make = make<OuterMean>, .dtypes = {DType::fp32}});
const Registered outer_update({.name = "outer update", .tag = "[outer]", .dimensions = {"elements", "workers"},
                               .edges = kWorkers, .small = {{1 << 24, 4}}, .large = {{124475904, 4}},
                               .make = make<OuterUpdate>});

}  // namespace
}  // namespace operations::outer_operation
