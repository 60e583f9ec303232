// onebit.cpp - the mean over ranks at 1 or 4 bits per element: a worker's messages, a server's reply, and the errors of
// both
#include "test/operations/onebit.h"

namespace operations::onebit_operation {
namespace {

constexpr int kLargestWorld = 8;
// Rounding may decide the sign of a sum closer to 0 than this; the test moves such sums away by changing their error.
constexpr double kNearZero = 1.0 / 64;
constexpr float kDecay = 0.75f;  // of the errors, with 4 bits

template <class N, class Error> N carried(bool has_error, const Error& error, std::size_t i) {
    return has_error ? N(kDecay) * N(error[i]) : N(0);
}

// What workers and servers do with compensated values: store them, send their signs and sum their squares. Masked
// elements below `left_alone` keep their value. With 4 bits no bits are written.
template <int Bits, class V, class Kept, class Words, class Partial, class Active>
void keep_tile(const V& v, const OnebitTile& tile, Kept kept, Words bits, Partial& partial, Active active,
               std::int64_t left_alone = 0) {
    using N = typename V::Number;
    typename V::Sum sum = 0;
    each_word(tile, [&](std::int64_t first, int count) {
        std::uint32_t signs = 0;
        N run = 0;
        for (int k = 0; k < count; ++k) {
            const bool counts = active(first + k);
            if (!counts && first + k >= left_alone) kept[std::size_t(first + k)] = 0;
            const N x = counts ? N(kept[std::size_t(first + k)]) : N(0);
            signs |= std::uint32_t(is_positive(x)) << k;
            run += x * x;
        }
        if constexpr (Bits == 1) bits[(first - tile.first) / 32] = int(signs);
        v.add_in_double(sum, run);
    });
    partial = Bits == 4 ? sum_of_repeated(v, sum) : sum;
}

// `with`: 0 nothing; 1 the momentum and the gradient's scale; 2 the second moment, too. With 4 bits nothing; the last
// number of a shape is whether there are errors.
template <int Bits>
struct CompressTo : Onebit {
    int with = Bits == 1 ? shape[5] : 0;
    bool has_error = Bits == 1 || shape[5] != 0;
    Tensor<float> values = in_out<float>("values", layout.padded(), {.first = {0.0, -0.0}});
    Tensor<float> error =
        input<float>("error", has_error ? layout.padded() : 0, {.deviation = 0.5, .first = {0.0, -0.0}});
    Tensor<float> momentum = input<float>("momentum", with >= 1 ? layout.size : 0);
    Tensor<float> second_moment =
        input<float>("second moment", with == 2 ? layout.size : 0, {.deviation = 0.05, .mean = 1});
    Tensor<float> gradient_scale = input<float>("gradient scale", with >= 1, {.deviation = 0, .mean = 0.75});
    Tensor<int> messages = messages_of(Role::in_out, "messages", layout.ranks);
    Tensor<double> partial = output<double>("partial", tiles.size());

    explicit CompressTo(const Shape& shape) : Onebit(shape, false, Bits) {
        bytes = (8 + 4 * has_error + 4 * with + ((Bits == 1) + masked) / 8.0) * double(layout.padded());
        adjust(values.number, [&](std::size_t i, double g) { return std::int64_t(i) < layout.size ? g : NAN; });
        adjust(error.number, [&](std::size_t i, double e) {
            const auto of = [&](const Tensor<float>& t) { return t.storage().size > i ? t.storage().initial(i) : 0; };
            const double z = std::int64_t(i) < layout.size ? e + averaged(of(values), of(momentum), of(second_moment))
                                                           : e;
            return z != 0 && std::fabs(z) < kNearZero ? e + 2 * kNearZero : e;
        });
    }
    static constexpr float kMomentumWeight = 0.9f, kGradientWeight = 0.4f, kScale = 0.75f, kEps = 0.25f;
    template <class N> N averaged(N gradient, N momentum, N second_moment) const {
        if (with == 0) return gradient;
        const N x = N(kMomentumWeight) * momentum + N(kGradientWeight) * (N(kScale) * gradient);
        return with == 1 ? x : x / (sqrt(second_moment) + N(kEps));
    }
    void run(device::StreamRef stream) override {
        kernels::OnebitCompress op{.layout = layout, .tiles = device_tiles.span(), .values = values, .error = error,
                                   .messages = words(messages), .partial = partial, .active = mask(),
                                   .momentum = momentum, .second_moment = second_moment,
                                   .gradient_scale = gradient_scale, .eps = kEps};
        if (Bits == 4) op.error_weight = kDecay;
        if (with >= 1) op.momentum_weight = kMomentumWeight, op.gradient_weight = kGradientWeight;
        kernels::onebit_compress(op, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        const auto z = v[values], e = v[error], m = v[momentum], d = v[second_moment];
        const auto bits = v[messages];
        const auto sums = v[partial];
        const auto mask = v[active];
        v.each(tiles.size(), [=, this, &v](std::size_t t) {
            const OnebitTile& tile = tiles[t];
            for (std::int64_t at = tile.first; at < tile.first + tile.size; ++at) {
                const auto i = std::size_t(at);
                if (at < layout.size && !is_active(mask, at)) continue;
                if constexpr (Bits == 4) z[i] = (at < layout.size ? N(z[i]) : N(0)) + carried<N>(has_error, e, i);
                else if (at >= layout.size) z[i] = e[i];
                else z[i] = N(e[i]) + averaged<N>(z[i], with >= 1 ? N(m[i]) : N(0), with == 2 ? N(d[i]) : N(1));
            }
            keep_tile<Bits>(v, tile, z, &bits[first_word(tile.chunk, tile.first - tile.chunk * layout.chunk)], sums[t],
                            [&](std::int64_t i) { return is_active(mask, i); }, layout.size);
        });
    }
};

// The last rank, whose chunk has the padding. A message has one scale, or one per group.
// With 4 bits there are errors if the message has one scale.
template <int Bits>
struct ServeAt : Onebit {
    bool one = shape[5] != 0, has_error = Bits == 1 || one;
    Tensor<float> sums = output<float>("sums", layout.chunk);
    Tensor<float> error = input<float>("error", has_error ? layout.chunk : 0, {.deviation = 0.5});
    Tensor<int> received = messages_of(Role::input, "received", layout.ranks);
    Tensor<int> reply = messages_of(Role::in_out, "reply", 1);
    Tensor<double> partial = output<double>("partial", tiles.size());

    explicit ServeAt(const Shape& shape) : Onebit(shape, true, Bits) {
        bytes = (4 + 4 * has_error + (Bits * layout.ranks + (Bits == 1) + masked) / 8.0) * double(layout.chunk);
        if (Bits == 4) return;
        std::vector<int> group(std::size_t(layout.chunk), 0);
        for (const OnebitTile& tile : tiles)
            for (std::int32_t k = 0; k < tile.size; ++k) group[std::size_t(tile.first + k)] = tile.group;
        const Storage& all = received.storage();
        adjust(error.number, [&](std::size_t i, double e) {
            double s = e;
            for (int rank = 0; rank < layout.ranks; ++rank) {
                const auto bits = word(all.initial(std::size_t(first_word(rank, std::int64_t(i)))));
                const float a = scale(all.initial(std::size_t(rank * layout.message_words() + (one ? 0 : group[i]))));
                s += times_sign<double>(a, bits >> i % 32 & 1) / layout.ranks;
            }
            return std::fabs(s) < kNearZero ? e + 2 * kNearZero : e;
        });
    }
    static bool applies(const Shape& s) { return s[1] <= kLargestWorld; }
    void run(device::StreamRef stream) override {
        kernels::onebit_serve({.layout = layout, .tiles = device_tiles.span(), .sums = sums, .error = error,
                               .received = words(received), .reply = words(reply), .partial = partial,
                               .active = mask(), .chunk = layout.ranks - 1, .one = one,
                               .error_weight = Bits == 4 ? kDecay : 1}, stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        const auto s = v[sums], e = v[error];
        const auto in = v[received], bits = v[reply];
        const auto squares = v[partial];
        const auto mask = v[active];
        const std::int64_t before = (layout.ranks - 1) * layout.chunk;
        v.each(tiles.size(), [=, this, &v](std::size_t t) {
            const OnebitTile& tile = tiles[t];
            N a[kLargestWorld];
            for (int rank = 0; rank < layout.ranks; ++rank)
                a[rank] = N(scale(in[std::size_t(rank * layout.message_words() + (one ? 0 : tile.group))])) /
                          N(layout.ranks);
            each_word(tile, [&](std::int64_t first, int count) {
                N sum[32] = {};
                for (int rank = 0; rank < layout.ranks; ++rank) {
                    if constexpr (Bits == 4) {
                        for (int k = 0; k < count; ++k) sum[k] += a[rank] * N(unit(in, rank, first + k));
                        continue;
                    }
                    const std::uint32_t signs = word(in[std::size_t(first_word(rank, first))]);
                    for (int k = 0; k < 32; ++k) sum[k] += signs >> k & 1 ? a[rank] : -a[rank];
                }
                for (int k = 0; k < count; ++k) {
                    const auto i = std::size_t(first + k);
                    s[i] = sum[k] + (Bits == 4 ? carried<N>(has_error, e, i) : N(e[i]));
                }
            });
            keep_tile<Bits>(v, tile, s, &bits[first_word(0, tile.first)], squares[t],
                            [&](std::int64_t i) { return is_active(mask, before + i); });
        });
    }
};

// The levels of a bucket's values, none close to the middle between two levels.
struct Quantize : Onebit {
    bool one = shape[5] != 0;
    Tensor<float> values = input<float>("values", masked ? layout.size : layout.padded());
    Tensor<int> messages = messages_of(Role::in_out, "messages", layout.ranks);

    explicit Quantize(const Shape& shape) : Onebit(shape, false, 4) {
        bytes = (4 + (4 + masked) / 8.0) * double(layout.size);
        std::vector<float> scales(std::size_t(layout.padded()));
        for (const OnebitTile& tile : tiles)
            std::fill_n(&scales[std::size_t(tile.first)], tile.size,
                        scale(messages.storage().initial(std::size_t(at_scale(tile)))));
        adjust(values.number, [&](std::size_t i, double z) {
            const double level = z / double(scales[i]);
            return std::fabs(level - std::floor(level) - 0.5) < kNearZero ? z + 2 * kNearZero * double(scales[i]) : z;
        });
    }
    std::int64_t at_scale(const OnebitTile& tile) const {
        return tile.chunk * layout.message_words() + (one ? 0 : tile.group);
    }
    void run(device::StreamRef stream) override {
        kernels::onebit_quantize({.layout = layout, .tiles = device_tiles.span(), .values = values,
                                  .messages = words(messages), .active = mask(), .one = one}, stream);
    }
    template <class V> void formula(V& v) const {
        v.each(tiles.size(), [=, this, z = v[values], out = v[messages], mask = v[active]](std::size_t t) {
            const OnebitTile& tile = tiles[t];
            const double s = double(scale(out[std::size_t(at_scale(tile))]));
            for (std::int64_t first = tile.first; first < tile.first + tile.size; first += 8) {
                std::uint32_t levels = 0;
                for (int k = 0; k < 8; ++k) {
                    const auto i = std::size_t(first + k);
                    const double x = i < values.storage().size && is_active(mask, first + k) ? double(z[i]) / s : 0;
                    levels |= std::uint32_t(std::clamp(std::nearbyint(x), -7.0, 7.0) + 7) << 4 * k;
                }
                const std::int64_t in_chunk = first - tile.chunk * layout.chunk;
                out[std::size_t(first_word(tile.chunk, 0) + in_chunk / 8)] = int(levels);
            }
        });
    }
};

template <int Bits>
struct CommitAt : Onebit {
    Tensor<float> sums = input<float>("sums", layout.chunk, {.first = {0.0, -0.0}});
    Tensor<float> error = output<float>("error", layout.chunk);
    Tensor<int> reply = messages_of(Role::input, "reply", 1), go = finite();

    explicit CommitAt(const Shape& shape) : Onebit(shape, true, Bits) {
        bytes = (8 + ((Bits == 4) * 4 + masked) / 8.0) * double(layout.chunk);
    }
    void run(device::StreamRef stream) override {
        kernels::onebit_commit({.layout = layout, .tiles = device_tiles.span(), .sums = sums, .error = error,
                                .reply = words(reply), .finite = go, .active = mask(), .chunk = layout.ranks - 1},
                               stream);
    }
    template <class V> void formula(V& v) const {
        using N = typename V::Number;
        const auto s = v[sums], e = v[error];
        const auto scales = v[reply], mask = v[active];
        const std::int64_t before = (layout.ranks - 1) * layout.chunk;
        v.each(tiles.size(), [=, this](std::size_t t) {
            const OnebitTile& tile = tiles[t];
            const float b = scale(scales[std::size_t(tile.group)]);
            for (std::int64_t at = tile.first; at < tile.first + tile.size; ++at) {
                const auto i = std::size_t(at);
                const N sent = Bits == 4 ? N(b) * N(unit(scales, 0, at)) : times_sign<N>(b, is_positive(s[i]));
                e[i] = is_active(mask, before + at) ? N(s[i]) - sent : N(0);
            }
        });
    }
};

// No elements; less than a pack; chunks that end within a word of bits, and begin within a word of the mask; padding
// over many chunks; groups of words, and a little more than a tile in either geometry; tiles and a remainder.
const std::vector<Shape> kEdges{{0, 2, 8, 0, 0},        {1, 1, 8, 0, 0},      {7, 2, 8, 0, 1},
                                {33, 2, 8, 0, 0},       {100, 8, 8, 0, 1},    {300, 2, 8, 64, 1},
                                {5000, 8, 128, 0, 0},   {8200, 1, 8, 0, 1},   {20011, 2, 128, 0, 0},
                                {20011, 2, 8, 4128, 1}, {70001, 8, 128, 0, 0}};
const std::vector<Shape> kSmall{{1 << 24, 8, 128, 0, 0}}, kLarge{{124475904, 8, 128, 0, 0}};
const std::vector<Shape> kSmallWorlds{{1 << 24, 2, 128, 0, 0, 1}, {1 << 24, 8, 128, 0, 0, 1}},
    kLargeWorlds{{124475904, 2, 128, 0, 0, 1}, {124475904, 8, 128, 0, 0, 1}};

const std::vector<std::string> kWithErrors = and_one(kOnebitDimensions, "errors"),
                               kWithOne = and_one(kOnebitDimensions, "one scale");
const Registered compress({.name = "onebit compress", .tag = "[onebit]",
                           .dimensions = and_one(kOnebitDimensions, "momentum"),
                           .edges = with_each(kEdges, {0, 1, 2}), .small = with_each(kSmall, {0, 1}),
                           .large = with_each(kLarge, {0, 1}), .make = make_one<CompressTo<1>>,
                           .dtypes = {DType::fp32}});
const Registered serve({.name = "onebit serve", .tag = "[onebit]", .dimensions = kWithOne,
                        .edges = with_each(kEdges, {0, 1}), .small = kSmallWorlds, .large = kLargeWorlds,
                        .make = make_one<ServeAt<1>>, .dtypes = {DType::fp32}});
const Registered commit({.name = "onebit commit", .tag = "[onebit][one_order]", .dimensions = kOnebitDimensions,
                         .edges = kEdges, .small = {{1 << 24, 2, 128, 0, 0}}, .large = {{124475904, 2, 128, 0, 0}},
                         .make = make_one<CommitAt<1>>, .dtypes = {DType::fp32}});
const Registered compress_4({.name = "onebit compress at 4 bits", .tag = "[onebit]", .dimensions = kWithErrors,
                             .edges = with_each(kEdges, {0, 1}), .small = with_each(kSmall, {0, 1}),
                             .large = with_each(kLarge, {0, 1}), .make = make_one<CompressTo<4>>,
                             .dtypes = {DType::fp32}});
const Registered quantize({.name = "onebit quantize", .tag = "[onebit]", .dimensions = kWithOne,
                           .edges = with_each(kEdges, {0, 1}), .small = with_each(kSmall, {1}),
                           .large = with_each(kLarge, {1}), .make = make_one<Quantize>, .dtypes = {DType::fp32}});
const Registered serve_4({.name = "onebit serve at 4 bits", .tag = "[onebit]", .dimensions = kWithOne,
                          .edges = with_each(kEdges, {0, 1}), .small = kSmallWorlds, .large = kLargeWorlds,
                          .make = make_one<ServeAt<4>>, .dtypes = {DType::fp32}});
const Registered commit_4({.name = "onebit commit at 4 bits", .tag = "[onebit][one_order]",
                           .dimensions = kOnebitDimensions, .edges = kEdges, .small = {{1 << 24, 2, 128, 0, 0}},
                           .large = {{124475904, 2, 128, 0, 0}}, .make = make_one<CommitAt<4>>,
                           .dtypes = {DType::fp32}});

}  // namespace
}  // namespace operations::onebit_operation
