// conversions.cpp - cvt: conversions between types
#include <bit>
#include <cmath>
#include <concepts>
#include <limits>

#include "test/stand_in/ptx/lanewise.h"

namespace stand_in::ptx {
namespace {

// Rounded to nearest, ties to even; NaN becomes 0x7fff.
std::uint16_t bf16_of(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if (std::isnan(value)) return 0x7fff;
    return std::uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// To integers: values out of range saturate. NaN becomes 0; from or to 64 bits only the highest bit is set.
template <class To, class From>
To integer_of(From value) {
    if (std::isnan(value))
        return sizeof(From) == 8 || sizeof(To) == 8 ? To(std::uint64_t(1) << (8 * sizeof(To) - 1)) : To(0);
    if (value <= From(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    if (value >= From(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
    return To(value);
}

template <class To, class From>
Handler conversion(std::string_view rounding) {
    if constexpr (std::integral<To> && std::integral<From>) {
        return rounding.empty() ? lanewise<To, From>([](From a) { return To(a); }) : nullptr;
    } else if constexpr (std::floating_point<To>) {
        if (std::same_as<To, From> && rounding == "rzi")
            return lanewise<To, From>([](From a) { return To(std::trunc(a)); });
        return rounding == "rn" || rounding.empty() ? lanewise<To, From>([](From a) { return To(a); }) : nullptr;
    } else {
        return rounding == "rzi" ? lanewise<To, From>([](From a) { return integer_of<To>(std::trunc(a)); }) : nullptr;
    }
}

}  // namespace

std::optional<Operation> conversion_of(const Mnemonic& mnemonic) {
    const auto& to = mnemonic[mnemonic.size() - 2];
    const std::string_view rounding = mnemonic.size() == 4 ? mnemonic[1] : "";
    const auto from_type = type_named(mnemonic.back());
    if (mnemonic.size() > 4 || !from_type) return {};
    constexpr Type f32{'f', 32};
    if (to == "bf16" && rounding == "rn" && *from_type == f32)
        return Operation{lanewise<std::uint16_t, float>([](float a) { return bf16_of(a); }), {'b', 16}, {f32}};
    if (to == "bf16x2" && rounding == "rn" && *from_type == f32)  // the first operand is the upper half
        return Operation{lanewise<std::uint32_t, float, float>([](float high, float low) {
                             return std::uint32_t(bf16_of(high)) << 16 | bf16_of(low);
                         }), {'b', 32}, {f32, f32}};
    const auto to_type = type_named(to);
    if (!to_type) return {};
    // 8-bit values use 16-bit registers.
    if (*from_type == Type{'s', 8} || *from_type == Type{'u', 8}) {
        const bool is_signed = from_type->kind == 's';
        const Handler handler = of_type(*to_type, [&]<class To>() -> Handler {
            if (sizeof(To) == 1 || !(rounding.empty() || (std::floating_point<To> && rounding == "rn"))) return nullptr;
            return is_signed ? lanewise<To, std::uint16_t>([](std::uint16_t a) { return To(std::int8_t(a)); })
                             : lanewise<To, std::uint16_t>([](std::uint16_t a) { return To(std::uint8_t(a)); });
        });
        if (!handler) return {};
        return Operation{handler, *to_type, {{'b', 16}}};
    }
    if (to_type->bits == 8) return {};
    const Handler handler = of_type(*to_type, [&]<class To>() {
        return of_type(*from_type, [&]<class From>() { return conversion<To, From>(rounding); });
    });
    if (!handler) return {};
    return Operation{handler, *to_type, {*from_type}};
}

}  // namespace stand_in::ptx
