// outer.cpp - the passes of an outer step: a worker's change, the mean change, and the update of the anchor; the change
// and the step of workers that exchange 1 or 4 bits per element
#include "kernels/outer.h"

#include "kernels/device/memory.h"
#include "test/operations/onebit.h"

namespace operations::outer_operation {
namespace {

using kernels::NormTile;

constexpr float kLearningRate = 0.7f, kMu = 0.6f, kRateSum = 0.19f;

// The change of one worker, which is also copied to `values`, or divided (then every other word of the mask is 0), or
// the mean change. The first 16 elements are in no tile.
template <bool Copies, bool Divides = false>
struct OuterNorm : Operation {
    int workers = Copies ? 1 : shape[1];
    std::vector<NormTile> tiles = tiles_of(shape[0]);
    Tensor<float> sums = input<float>("sums", shape[0], {.deviation = 0.04});
    Tensor<float> anchor = input<float>("anchor", shape[0], {.deviation = 0.02});
    Tensor<double> partial = output<double>("partial", tiles.size());
    Tensor<float> values = Copies ? in_out<float>("values", shape[0]) : Tensor<float>{};
    Tensor<int> active = input<int>("active", Divides ? (shape[0] + 31) / 32 : 0);
    device::Array<NormTile> device_tiles{tiles, nullptr};

    explicit OuterNorm(const Shape& shape) : Operation(shape) {
        adjust(active.number, [](std::size_t i, double) { return i % 2 == 0 ? -1.0 : 0.0; });
        bytes = (Copies ? 12.0 : 8.0) * shape[0];
    }
    static std::vector<NormTile> tiles_of(std::int64_t elements) {
        std::vector<NormTile> tiles;
        kernels::append_tiles(tiles, 16, elements - 16);
        return tiles;
    }
    void run(device::StreamRef stream) override {
        if constexpr (Copies)
            kernels::outer_change({values, sums, anchor, device_tiles.span(), partial, Divides ? kRateSum : 0,
                                   words(active)}, stream);
        else kernels::outer_mean({sums, anchor, device_tiles.span(), partial, workers}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(tiles.size(), [&, x = v[sums], a = v[anchor], sum = v[partial]](std::size_t t) {
            typename V::Sum total = 0;
            for (auto i = std::size_t(tiles[t].first); i < std::size_t(tiles[t].first + tiles[t].size); ++i) {
                const bool counts = !Divides || i / 32 % 2 == 0;
                const N y = counts ? N(x[i]) / N(float(workers)) - N(a[i]) : N(0);
                v.add_in_double(total, y * y);
                if constexpr (Copies) v[values][i] = Divides ? y / N(kRateSum) : N(x[i]);
            }
            sum[t] = total;
        });
    }
};

template <class T>
struct OuterUpdate : Operation {
    int elements = shape[0], workers = shape[1];
    Tensor<float> master = output<float>("master", elements);
    Tensor<float> anchor = in_out<float>("anchor", elements, {.deviation = 0.02});
    Tensor<float> momentum = in_out<float>("momentum", elements, {.deviation = 0.02});
    Tensor<float> sums = input<float>("sums", elements, {.deviation = 0.04});
    Tensor<double> norm = input<double>("norm", 1);
    Tensor<T> parameter = parameter_of<T>(master, Role::output);
    device::Array<kernels::StepScalars> device_step{std::vector<kernels::StepScalars>(1), nullptr};

    explicit OuterUpdate(const Shape& shape) : Operation(shape) {
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

// The last number of a shape: the bits of an element; the one before it: whether there are errors.
struct OuterApply : Onebit {
    bool one = shape[3] == 0, has_error = shape[5] != 0;
    Tensor<float> compensated = input<float>("compensated", has_error ? layout.size : 0);
    Tensor<float> error = in_out<float>("error", has_error ? layout.padded() : 0);
    Tensor<float> anchor = in_out<float>("anchor", layout.size, {.deviation = 0.02});
    Tensor<float> momentum = in_out<float>("momentum", layout.size, {.deviation = 0.02});
    Tensor<int> messages = messages_of(Role::input, "messages", has_error ? layout.ranks : 0);
    Tensor<int> replies = messages_of(Role::input, "replies", layout.ranks), go = finite();
    Tensor<double> partial = output<double>("partial", tiles.size());

    explicit OuterApply(const Shape& shape) : Onebit(shape, false, shape[6]) {
        bytes = (16 + has_error * (8 + layout.bits / 8.0) + (layout.bits + masked) / 8.0) * double(layout.size);
    }
    void run(device::StreamRef stream) override {
        kernels::outer_apply({.layout = layout, .tiles = device_tiles.span(), .replies = words(replies),
                                 .compensated = compensated, .error = error, .messages = words(messages),
                                 .active = mask(), .one = one, .anchor = anchor, .momentum = momentum,
                                 .partial = partial, .finite = go, .rate_sum = kRateSum,
                                 .learning_rate = kLearningRate, .mu = kMu}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        v.each(tiles.size(), [=, this, &v, z = v[compensated], e = v[error], a = v[anchor], u = v[momentum],
                              sent = v[messages], got = v[replies], sum = v[partial], mask = v[active]](std::size_t t) {
            const OnebitTile& tile = tiles[t];
            const std::int64_t header = tile.chunk * layout.message_words();
            const auto decoded = [&](const auto& all, std::int64_t at, int group) {
                return N(scale(all[std::size_t(header + group)])) *
                       N(unit(all, tile.chunk, at - tile.chunk * layout.chunk));
            };
            typename V::Sum total = 0;
            for (std::int64_t at = tile.first; at < std::min(tile.first + tile.size, layout.size); ++at) {
                const auto i = std::size_t(at);
                const bool counts = is_active(mask, at);
                const N y = counts ? N(kRateSum) * decoded(got, at, tile.group) : N(0), p = N(a[i]) + y;
                v.add_in_double(total, y * y);
                if (has_error) e[i] = counts ? N(z[i]) - decoded(sent, at, one ? 0 : tile.group) : N(0);
                u[i] = N(kMu) * N(u[i]) + y;
                a[i] = p + (N(kLearningRate - 1) * y + N(kLearningRate * kMu) * N(u[i]));
            }
            sum[t] = sum_of_repeated(v, total);
        });
    }
};

// Around the packs of both devices; less than a tile, a tile, several tiles and a remainder.
const std::vector<Shape> kElements{{0}, {1}, {15}, {16}, {33}, {4112}, {8207}, {70001}};
const std::vector<Shape> kWorkers = with_each(kElements, {1, 3, 8});

const Registered outer_change({.name = "outer change", .tag = "[outer]", .dimensions = {"elements"},
                               .edges = kElements, .small = {{1 << 24}}, .large = {{124475904}},
                               .make = make_one<OuterNorm<true>>, .dtypes = {DType::fp32}});
const Registered outer_mean({.name = "outer mean", .tag = "[outer]", .dimensions = {"elements", "workers"},
                             .edges = kWorkers, .small = {{1 << 24, 4}}, .large = {{124475904, 4}},
                             .make = make_one<OuterNorm<false>>, .dtypes = {DType::fp32}});
const Registered outer_update({.name = "outer update", .tag = "[outer]", .dimensions = {"elements", "workers"},
                               .edges = kWorkers, .small = {{1 << 24, 4}}, .large = {{124475904, 4}},
                               .make = make<OuterUpdate>});

const Registered scaled_change({.name = "outer change of an exchange", .tag = "[outer]", .dimensions = {"elements"},
                                .edges = kElements, .small = {{1 << 24}}, .large = {{124475904}},
                                .make = make_one<OuterNorm<true, true>>, .dtypes = {DType::fp32}});
const std::vector<Shape> kBuckets{{32, 1, 128, 0, 1, 1, 1},      {160, 2, 32, 0, 0, 0, 4},
                                  {8224, 1, 128, 0, 1, 1, 4},    {20000, 2, 128, 0, 1, 0, 4},
                                  {70016, 8, 128, 4096, 1, 1, 1}, {9600, 2, 128, 64, 0, 1, 4}};
const Registered outer_apply({.name = "outer apply", .tag = "[outer]",
                              .dimensions = and_one(and_one(kOnebitDimensions, "errors"), "bits"), .edges = kBuckets,
                              .small = {{1 << 24, 4, 128, 0, 0, 0, 4}, {1 << 24, 4, 128, 0, 0, 1, 1}},
                              .large = {{124475904, 4, 128, 0, 0, 0, 4}, {124475904, 4, 128, 0, 0, 1, 1}},
                              .make = make_one<OuterApply>, .dtypes = {DType::fp32}});

}  // namespace
}  // namespace operations::outer_operation
