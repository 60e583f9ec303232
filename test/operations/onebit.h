// onebit.h - shared by the operations on buckets of 1 or 4 bits per element: layout, mask and messages
#pragma once
#include "kernels/onebit.h"

#include <bit>

#include "kernels/device/memory.h"
#include "test/operations/operation.h"

namespace operations {

using kernels::OnebitLayout, kernels::OnebitTile;

// Initial message words: each is valid as a scale, 0.2 to 0.8, or as bits.
inline const Fill kWords{.deviation = 0x200000, .mean = 0x3f000000};

// Words are int tensors; a formula sees their elements as numbers.
template <class Number> std::uint32_t word(const Number& x) { return std::uint32_t(int(x)); }
template <class Number> float scale(const Number& x) { return std::bit_cast<float>(word(x)); }
inline std::span<std::uint32_t> words(const Tensor<int>& t) {
    return {reinterpret_cast<std::uint32_t*>(t.span().data()), t.span().size()};
}
constexpr std::uint32_t random_bits(std::size_t i) {
    std::uint32_t x = std::uint32_t(i) * 0x9e3779b9u + 1;
    for (const int shift : {16, 13, 16}) x = (x ^ x >> shift) * 0x85ebca6bu;
    return x ^ x >> 15;
}
template <class Number> bool is_positive(const Number& x) { return double(x) >= 0; }
template <class Number> Number times_sign(float scale, bool positive) { return positive ? scale : -scale; }

// Values that bits stand for repeat, and so do their rounding errors, which add up in a sum instead of averaging out.
template <class V> typename V::Sum sum_of_repeated(const V& v, const typename V::Sum& sum) {
    return v.with_error(typename V::Number(sum), 1e-6 * double(sum));
}

// A shape consists of elements, ranks, alignment, elements per group, and whether there is a mask.
struct Onebit : Operation {
    OnebitLayout layout;
    std::vector<OnebitTile> tiles;
    device::Array<OnebitTile> device_tiles;
    bool masked = shape[4] != 0;
    Tensor<int> active;  // empty without a mask

    // `of_chunk`: true: the tiles of one server's chunk; false: those of the bucket.
    Onebit(const Shape& s, bool of_chunk, int bits = 1) : Operation(s) {
        const auto plan = kernels::onebit_plan(kernels::onebit_layout(s[0], s[1], s[2], bits), s[3], {});
        layout = plan.layout;
        tiles = of_chunk ? kernels::onebit_plan(layout.of_chunk(), s[3], {}).tiles : plan.tiles;
        device_tiles = {tiles, nullptr};
        active = input<int>("active", masked ? (layout.padded() + 31) / 32 : 0, kWords);
        adjust(active.number, [](std::size_t i, double) {  // one bit in eight is masked
            return double(int(random_bits(3 * i) | random_bits(3 * i + 1) | random_bits(3 * i + 2)));
        });
    }
    // `count` messages: scales from kWords, random bits, and zeros in all other words.
    Tensor<int> messages_of(Role role, const std::string& name, std::int64_t count) {
        const Tensor<int> all = tensor<int>(role, name, count * layout.message_words(), kWords);
        adjust(all.number, [&](std::size_t i, double scale) {
            const std::int64_t at = std::int64_t(i) % layout.message_words(), bits = at - layout.header_words();
            if (bits >= 0 && bits < (layout.chunk * layout.bits + 31) / 32) return double(int(random_bits(i)));
            return at < layout.scales ? scale : 0.0;
        });
        return all;
    }
    Tensor<int> finite() { return input<int>("finite", 1, {.deviation = 0, .mean = 1}); }
    std::span<const std::uint32_t> mask() const { return words(active); }
    // Index of the word that holds the bit of element `in_chunk` of a chunk in an array of messages.
    std::int64_t first_word(std::int64_t message, std::int64_t in_chunk) const {
        return message * layout.message_words() + layout.header_words() + in_chunk / 32;
    }
    // What the bits of element `in_chunk` stand for, in units of the scale.
    template <class View> float unit(const View& messages, std::int64_t message, std::int64_t in_chunk) const {
        const std::int64_t bit = in_chunk * layout.bits;
        const std::uint32_t bits = word(messages[std::size_t(first_word(message, 0) + bit / 32)]) >> bit % 32;
        return layout.bits == 4 ? float(int(bits & 15) - 7) : bits & 1 ? 1.0f : -1.0f;
    }
    template <class View> bool is_active(const View& mask, std::int64_t i) const {
        return !masked || (word(mask[std::size_t(i / 32)]) >> i % 32 & 1) != 0;
    }
};

// Calls visit(first, count) for each word of the tile: elements [first, first + count), at most 32.
template <class Visit> void each_word(const OnebitTile& tile, Visit visit) {
    for (std::int32_t at = 0; at < tile.size; at += 32) visit(tile.first + at, std::min(32, tile.size - at));
}

inline const std::vector<std::string> kOnebitDimensions{"elements", "ranks", "alignment", "group", "masked"};
inline std::vector<std::string> and_one(std::vector<std::string> dimensions, const std::string& last) {
    dimensions.push_back(last);
    return dimensions;
}

}  // namespace operations
