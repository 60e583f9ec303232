// onebit_ranks.h - all ranks of the mean at 1 or 4 bits per element in one process: runs the kernels in order, with
// host copies in place of a network
#pragma once
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/device/memory.h"
#include "kernels/onebit.h"

namespace test {

using Floats = std::vector<float>;
// The inputs of the specification's test vectors: calls 1 and 2 of ranks 0 and 1.
inline const std::vector<std::vector<Floats>> kInputs{
    {{2, -1.5f, 1, 0, .5f, -.5f, -1, 1.5f, .5f, 1, -0.0f, -1.5f, .5f, -1, 0, -.5f},
     {.5f, .25f, -.5f, -.25f, 1, .5f, -.5f, -.25f, .25f, .75f, 0, -.75f, .5f, -.25f, .5f, -.25f}},
    {{-1, .5f, .25f, 1, -.5f, .75f, 0, -.25f, 1.5f, -.5f, .25f, .5f, -2, .25f, -1, .125f},
     {.25f, .5f, -.5f, .75f, -.25f, .25f, 1, -.5f, .25f, -1.25f, .5f, .25f, 0, .5f, -.25f, .125f}}};

inline std::vector<std::uint32_t> bits_of(const std::vector<bool>& set) {
    std::vector<std::uint32_t> words((set.size() + 31) / 32);
    for (std::size_t i = 0; i < set.size(); ++i) words[i / 32] |= std::uint32_t(set[i]) << i % 32;
    return words;
}

template <class T> std::vector<T> host(const device::Array<T>& array) { return array.download(nullptr); }

// All ranks' state of a bucket on one device; the host copies the messages.
struct OnebitRanks {
    struct Rank {
        device::Array<float> values, error, mean, sums, server_error;
        device::Array<std::uint32_t> messages, received, reply, replies;
        device::Array<double> partial, server_partial;
        device::Array<std::int32_t> finite;
    };
    bool errors = true;  // error feedback; only 4 bits work without it
    float decay = 1;     // of the errors
    std::vector<std::uint32_t> mask;
    kernels::OnebitPlan plan;
    device::Array<std::uint32_t> active;
    device::Array<kernels::OnebitTile> tiles;
    device::Array<kernels::OnebitGroup> groups;
    std::vector<device::Array<kernels::OnebitTile>> chunk_tiles;
    std::vector<device::Array<kernels::OnebitGroup>> chunk_groups;
    std::vector<Rank> rank;

    // Each worker has one scale, each server one for its chunk.
    OnebitRanks(std::int64_t size, int ranks, int alignment, std::vector<bool> kept = {}, int bits = 1) {
        const kernels::OnebitLayout layout = kernels::onebit_layout(size, ranks, alignment, bits);
        if (!kept.empty()) {
            kept.resize(std::size_t(layout.padded()), true);
            mask = bits_of(kept);
        }
        plan = kernels::onebit_plan(layout, 0, mask);
        active = {std::span<const std::uint32_t>(mask), nullptr};
        tiles = {std::span<const kernels::OnebitTile>(plan.tiles), nullptr};
        groups = {std::span<const kernels::OnebitGroup>(plan.groups), nullptr};
        const auto elements = std::size_t(layout.padded()), chunk = std::size_t(layout.chunk);
        const auto words = std::size_t(plan.layout.message_words());
        for (int r = 0; r < ranks; ++r) {
            const kernels::OnebitPlan of_chunk = kernels::onebit_plan_of_chunk(plan, r);
            chunk_tiles.emplace_back(std::span<const kernels::OnebitTile>(of_chunk.tiles), nullptr);
            chunk_groups.emplace_back(std::span<const kernels::OnebitGroup>(of_chunk.groups), nullptr);
            Rank& one_of = rank.emplace_back();
            for (auto* const array : {&one_of.values, &one_of.error}) *array = device::Array<float>(elements);
            for (auto* const array : {&one_of.sums, &one_of.server_error}) *array = device::Array<float>(chunk);
            one_of.mean = device::Array<float>(std::size_t(size));
            for (auto* const array : {&one_of.messages, &one_of.received, &one_of.replies})
                *array = device::Array<std::uint32_t>(words * std::size_t(ranks));
            one_of.reply = device::Array<std::uint32_t>(words);
            one_of.partial = device::Array<double>(plan.tiles.size());
            one_of.server_partial = device::Array<double>(of_chunk.tiles.size());
            one_of.finite = device::Array<std::int32_t>(1);
            one_of.error.zero(nullptr);
            one_of.server_error.zero(nullptr);
            device::sync(nullptr);  // `of_chunk` ends here
        }
    }
    // One whole exchange; returns y of every rank.
    std::vector<Floats> average(const std::vector<Floats>& inputs) {
        exchange(inputs);
        return take();
    }

    // Everything before the verdict; afterwards every rank has all replies.
    void exchange(const std::vector<Floats>& inputs) {
        const kernels::OnebitLayout& layout = plan.layout;
        const float factor = layout.bits == 4 ? kernels::kScaleOf4Bits : 1;
        const auto words = std::size_t(layout.message_words());
        const int ranks = layout.ranks;
        for (int r = 0; r < ranks; ++r) {
            Rank& mine = rank[std::size_t(r)];
            Floats padded = inputs[std::size_t(r)];
            padded.resize(std::size_t(layout.padded()), NAN);  // padding is not read
            mine.values.upload(padded, nullptr);
            const std::int32_t yes = 1;
            mine.finite.upload(std::span(&yes, 1), nullptr);
            mine.messages.zero(nullptr);
            mine.reply.zero(nullptr);
            kernels::onebit_compress({.layout = layout, .tiles = tiles.span(), .values = mine.values.span(),
                                      .error = with_errors(mine.error), .messages = mine.messages.span(),
                                      .partial = mine.partial.span(), .active = active.span(), .error_weight = decay},
                                     nullptr);
            kernels::onebit_scales({.layout = layout, .groups = groups.span(), .partial = mine.partial.span(),
                                    .messages = mine.messages.span(), .one = true, .factor = factor}, nullptr);
            if (layout.bits == 4)
                kernels::onebit_quantize({.layout = layout, .tiles = tiles.span(), .values = mine.values.span(),
                                          .messages = mine.messages.span(), .active = active.span(), .one = true},
                                         nullptr);
            device::sync(nullptr);  // the uploaded host arrays end here
        }
        for (int q = 0; q < ranks; ++q) {
            Rank& server = rank[std::size_t(q)];
            std::vector<std::uint32_t> received;
            for (const Rank& from : rank) {
                const auto sent = host(from.messages);
                received.insert(received.end(), sent.begin() + std::ptrdiff_t(words) * q,
                                sent.begin() + std::ptrdiff_t(words) * (q + 1));
            }
            server.received.upload(received, nullptr);
            kernels::onebit_serve({.layout = layout, .tiles = chunk_tiles[std::size_t(q)].span(),
                                   .sums = server.sums.span(), .error = with_errors(server.server_error),
                                   .received = server.received.span(), .reply = server.reply.span(),
                                   .partial = server.server_partial.span(),
                                   .active = active.span(), .chunk = q, .one = true, .error_weight = decay}, nullptr);
            kernels::onebit_scales({.layout = layout, .groups = chunk_groups[std::size_t(q)].span(),
                                    .partial = server.server_partial.span(), .messages = server.reply.span(),
                                    .factor = factor}, nullptr);
            if (layout.bits == 4)
                kernels::onebit_quantize({.layout = layout.of_chunk(), .tiles = chunk_tiles[std::size_t(q)].span(),
                                          .values = server.sums.span(), .messages = server.reply.span()}, nullptr);
            device::sync(nullptr);
        }
        std::vector<std::uint32_t> replies;
        for (const Rank& from : rank) {
            const auto reply = host(from.reply);
            replies.insert(replies.end(), reply.begin(), reply.end());
        }
        for (Rank& mine : rank) mine.replies.upload(replies, nullptr);
        device::sync(nullptr);
    }

    // Verdict, means and errors.
    std::vector<Floats> take() {
        std::vector<Floats> means;
        for (int r = 0; r < plan.layout.ranks; ++r) {
            check_scales(r);
            unpack(rank[std::size_t(r)]);
            commit(r);
            means.push_back(host(rank[std::size_t(r)].mean));
        }
        return means;
    }
    void check_scales(int r) {
        const Rank& mine = rank[std::size_t(r)];
        kernels::onebit_check_scales({.layout = plan.layout, .groups = groups.span(), .replies = mine.replies.span(),
                                      .finite = mine.finite.span()}, nullptr);
    }
    void commit(int r) {
        Rank& mine = rank[std::size_t(r)];
        if (errors)
            kernels::onebit_commit({.layout = plan.layout, .tiles = chunk_tiles[std::size_t(r)].span(),
                                    .sums = mine.sums.span(), .error = mine.server_error.span(),
                                    .reply = mine.reply.span(), .finite = mine.finite.span(),
                                    .active = active.span(), .chunk = r}, nullptr);
        device::sync(nullptr);
    }
    std::span<float> with_errors(const device::Array<float>& error) const {
        return errors ? error.span() : std::span<float>();
    }
    // What the bits of element i of a chunk stand for.
    float decoded(const std::uint32_t* words, std::size_t i, float scale) const {
        if (plan.layout.bits == 4) {
            const volatile float rounded = scale * float(int(words[i / 8] >> 4 * (i % 8) & 15) - 7);
            return rounded;
        }
        return words[i / 32] >> i % 32 & 1 ? scale : -scale;
    }
    // What 1-bit Adam and the outer step do within their update: y, and worker error = z minus what was sent.
    void unpack(Rank& mine) const {
        if (host(mine.finite)[0] == 0) return;
        const auto z = host(mine.values);
        const auto sent = host(mine.messages), got = host(mine.replies);
        Floats error = host(mine.error), mean = host(mine.mean);
        for (const kernels::OnebitTile& tile : plan.tiles) {
            const std::int64_t message = tile.chunk * plan.layout.message_words();
            const float a = std::bit_cast<float>(sent[std::size_t(message)]);
            const float b = std::bit_cast<float>(got[std::size_t(message + tile.group)]);
            const std::size_t bits = std::size_t(message + plan.layout.header_words());
            for (std::int64_t at = tile.first; at < tile.first + tile.size; ++at) {
                const auto i = std::size_t(at), in_chunk = std::size_t(at - tile.chunk * plan.layout.chunk);
                const bool counts = mask.empty() || mask[i / 32] >> i % 32 & 1;
                const float own = decoded(&sent[bits], in_chunk, a);
                error[i] = counts && errors ? z[i] - own : 0;
                if (i < mean.size()) mean[i] = counts ? decoded(&got[bits], in_chunk, b) : 0;
            }
        }
        mine.error.upload(error, nullptr);
        mine.mean.upload(mean, nullptr);
        device::sync(nullptr);
    }
    float worker_scale(int r) const { return std::bit_cast<float>(host(rank[std::size_t(r)].messages)[0]); }
    float server_scale(int q) const { return std::bit_cast<float>(host(rank[std::size_t(q)].reply)[0]); }
    // The bits that rank r sent, chunk after chunk.
    std::uint64_t sent_bits(int r, int bits_a_chunk) const {
        const auto sent = host(rank[std::size_t(r)].messages);
        std::uint64_t bits = 0;
        for (int q = plan.layout.ranks - 1; q >= 0; --q)
            bits = bits << bits_a_chunk |
                   sent[std::size_t(q * plan.layout.message_words() + plan.layout.header_words())];
        return bits;
    }
    std::uint32_t reply_bits(int q) const {
        return host(rank[std::size_t(q)].reply)[std::size_t(plan.layout.header_words())];
    }
};

}  // namespace test
