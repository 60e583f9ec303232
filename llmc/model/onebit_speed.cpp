// onebit_speed.cpp - the kernels of the 1-bit exchange on zeros, timed without a network
//
// Not what unpacks: the update does that in the pass over weights and moments that AdamW makes, too (onebit_adam.h).
#include "llmc/model/onebit_speed.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "llmc/model/context.h"

namespace llmc {

double measure_compression(std::int64_t elements, int ranks, Context& context) {
    using kernels::OnebitGroup, kernels::OnebitPlan, kernels::OnebitTile;
    if (elements == 0) return 0;
    const std::int64_t size = std::min(elements, std::int64_t(1) << 22);
    const device::StreamRef stream = context.stream;
    const OnebitPlan plan = kernels::onebit_plan(kernels::onebit_layout(size, ranks), 0, {}),
                     served = kernels::onebit_plan_of_chunk(plan, 0);
    const kernels::OnebitLayout layout = plan.layout;
    const auto padded = std::size_t(layout.padded()), chunk = std::size_t(layout.chunk),
               words = std::size_t(layout.message_words());
    const device::SyncIfThrown guard(stream);
    device::Array<float> values(padded), error(padded), momentum(padded), second(padded), sums(chunk),
        server_error(chunk);
    device::Array<std::uint32_t> messages(words * std::size_t(ranks)), reply(words);
    device::Array<double> partial(plan.tiles.size());
    device::Array<std::int32_t> finite(1);
    for (auto* const array : {&values, &error, &momentum, &second, &server_error}) array->zero(stream);
    messages.zero(stream);
    finite.zero(stream);
    const device::Array<OnebitTile> tiles(std::span<const OnebitTile>(plan.tiles), stream),
        served_tiles(std::span<const OnebitTile>(served.tiles), stream);
    const device::Array<OnebitGroup> groups(std::span<const OnebitGroup>(plan.groups), stream),
        served_groups(std::span<const OnebitGroup>(served.groups), stream);
    const std::int32_t yes = 1;
    finite.upload(std::span(&yes, 1), stream);
    device::sync(stream);
    double fastest = std::numeric_limits<double>::infinity();
    for (int repetition = 0; repetition < 3; ++repetition) {
        const auto began = std::chrono::steady_clock::now();
        kernels::onebit_compress({.layout = layout, .tiles = tiles.span(), .values = values.span(),
                                  .error = error.span(), .messages = messages.span(), .partial = partial.span(),
                                  .momentum = momentum.span(), .second_moment = second.span(),
                                  .momentum_weight = 0.9f, .gradient_weight = 0.1f, .eps = 1}, stream);
        kernels::onebit_scales({.layout = layout, .groups = groups.span(), .partial = partial.span(),
                                .messages = messages.span(), .one = true}, stream);
        kernels::onebit_serve({.layout = layout, .tiles = served_tiles.span(), .sums = sums.span(),
                               .error = server_error.span(), .received = messages.span(), .reply = reply.span(),
                               .partial = partial.span(), .one = true}, stream);
        kernels::onebit_scales({.layout = layout, .groups = served_groups.span(), .partial = partial.span(),
                                .messages = reply.span()}, stream);
        kernels::onebit_commit({.layout = layout, .tiles = served_tiles.span(), .sums = sums.span(),
                                .error = server_error.span(), .reply = reply.span(), .finite = finite.span()}, stream);
        device::sync(stream);
        fastest = std::min(fastest, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    }
    return fastest * double(elements) / double(size);
}

double break_even_bits_a_second(std::int64_t elements, int ranks, int bytes, double compression_seconds) {
    const double bits = 2.0 * (ranks - 1) / ranks * double(elements) * (8.0 * bytes - 1);
    return compression_seconds > 0 ? bits / compression_seconds : std::numeric_limits<double>::infinity();
}

}  // namespace llmc
