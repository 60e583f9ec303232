// onebit_adam.cpp - the update of 1-bit Adam from the sent message and the replies, and the worker's new error
#include "kernels/onebit_adam.h"

#include <algorithm>

#include "test/operations/onebit.h"

namespace operations::onebit_adam_operation {
namespace {

using kernels::DecaySegment, kernels::StepScalars;

constexpr float kEpsilon = 1e-6f, kDecay = 0.1f;

// Alternating tensors without decay, with decay, and not updated at all; with ends inside tiles. The bucket begins at
// element `first`.
std::vector<DecaySegment> tensors_of(std::int64_t first, std::int64_t elements) {
    std::vector<DecaySegment> segments;
    const std::int64_t lengths[] = {32, 64, 4096, 96, 20000, 32, 1024};
    const std::int64_t least = elements / 3200 * 32;
    std::int64_t end = 0;
    for (int i = 0; end < elements; ++i)
        segments.push_back({first + (end = std::min(elements, end + std::max(least, lengths[i % 7]))),
                            i % 3 == 2 ? kernels::kUnchanged : i % 3});
    return segments;
}

// The last number of a shape: whether ranks exchange the update (momentum / sqrt(second moment)) instead of the
// momentum.
template <class T>
struct OnebitAdam : Onebit {
    bool one = shape[3] == 0, update_space = shape[5] != 0;  // one: a message has one scale instead of one per group
    std::int64_t begin = one ? 0 : 1024;                     // of the bucket, in the flat array
    StepScalars step{.adam_step = 10, .learning_rate = 6e-4f, .grad_scale = 1, .first_correction = 1.5f};
    std::vector<DecaySegment> segments = tensors_of(begin, layout.size);
    Tensor<float> compensated = input<float>("compensated", layout.size, {.first = {0.0, -0.0}});
    Tensor<float> error = in_out<float>("error", layout.padded());
    Tensor<float> master = in_out<float>("master", layout.size, {.deviation = 0.02});
    Tensor<float> m = in_out<float>("m", layout.size, {.deviation = 0.01});
    Tensor<float> v = input<float>("v", layout.size, {.deviation = 1e-5, .mean = 1e-4});
    Tensor<float> largest = output<float>("largest", tiles.size());
    Tensor<int> messages = messages_of(Role::input, "messages", layout.ranks);
    Tensor<int> replies = messages_of(Role::input, "replies", layout.ranks);
    Tensor<T> parameter = parameter_of<T>(master, Role::in_out);
    device::Array<StepScalars> device_step{{&step, 1}, nullptr};
    device::Array<DecaySegment> device_segments{segments, nullptr};

    explicit OnebitAdam(const Shape& shape) : Onebit(shape, false) {
        adjust(active.number, [&](std::size_t i, double bits) {  // padding is masked
            return std::int64_t(i) * 32 < layout.size ? bits : 0.0;
        });
        bytes = (24 + (sizeof(T) == 2 ? 2 : 0) + 2 / 8.0) * double(layout.size);
    }
    void run(device::StreamRef stream) override {
        kernels::onebit_adam<T>({.layout = layout, .tiles = device_tiles.span(), .compensated = compensated,
                                 .error = error, .messages = words(messages), .replies = words(replies),
                                 .active = mask(), .one = one, .parameter = parameter, .master = master, .m = m,
                                 .v = v, .largest = largest, .segments = device_segments.span(),
                                 .scalars = device_step.span(), .eps = kEpsilon, .weight_decay = kDecay,
                                 .update_space = update_space, .rounding = {.first_element = begin}}, stream);
    }
    template <class V> void formula(V& values) const {
        using N = typename V::Number;
        const auto z = values[compensated], e = values[error], p = values[master], first = values[m],
                   second = values[v], most = values[largest];
        const auto stored = values[parameter];
        const auto sent = values[messages], got = values[replies], mask = values[active];
        values.each(tiles.size(), [=, this](std::size_t t) {
            const OnebitTile& tile = tiles[t];
            const std::int64_t header = tile.chunk * layout.message_words(), chunk = tile.chunk * layout.chunk;
            const float a = scale(sent[std::size_t(header + (one ? 0 : tile.group))]),
                        b = scale(got[std::size_t(header + tile.group)]);
            N moved = 0;
            for (std::int64_t at = tile.first; at < std::min(tile.first + tile.size, layout.size); ++at) {
                const auto i = std::size_t(at);
                const int decays = std::ranges::upper_bound(segments, begin + at, {}, &DecaySegment::end)->decays;
                if (decays == kernels::kUnchanged) continue;
                const bool counts = is_active(mask, at);
                const std::uint32_t signs = word(got[std::size_t(first_word(tile.chunk, at - chunk))]);
                const N y = counts ? times_sign<N>(b, signs >> (at - chunk) % 32 & 1) : N(0);
                e[i] = counts ? N(z[i]) - times_sign<N>(a, is_positive(z[i])) : N(0);
                const N denominator = sqrt(N(second[i])) + N(kEpsilon);
                const N mean = update_space ? y * denominator : y;
                const N move = N(step.learning_rate) * (mean * N(step.first_correction) / denominator);
                const N size = move < N(0) ? -move : move;
                if (moved < size) moved = size;
                first[i] = mean;
                const N weight = N(p[i]);
                p[i] = weight - move - N(step.learning_rate) * N(decays ? kDecay : 0.0f) * weight;
                stored[i] = N(p[i]);
            }
            most[t] = moved;
        });
    }
};

// Less than a tile in either geometry; chunks with padding; tiles and a remainder.
const std::vector<Shape> kEdges{{32, 1, 128, 0, 1, 0}, {160, 2, 128, 0, 1, 1}, {8224, 1, 128, 0, 1, 1},
                                {20000, 2, 128, 0, 1, 0}, {70016, 8, 128, 0, 1, 1},
                                {9600, 2, 128, 64, 1, 1}};
const std::vector<Shape> kSmall{{1 << 24, 8, 128, 0, 1, 0}, {1 << 24, 8, 128, 0, 1, 1}},
    kLarge{{124475904, 8, 128, 0, 1, 0}, {124475904, 8, 128, 0, 1, 1}};

const Registered onebit_adam({.name = "onebit adam", .tag = "[onebit]",
                              .dimensions = and_one(kOnebitDimensions, "update space"), .edges = kEdges,
                              .small = kSmall, .large = kLarge, .make = make<OnebitAdam>});

}  // namespace
}  // namespace operations::onebit_adam_operation
