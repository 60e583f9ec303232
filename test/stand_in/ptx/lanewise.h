// lanewise.h - makes handlers of instructions on registers
#pragma once
#include <utility>

#include "test/stand_in/ptx/operations.h"

namespace stand_in::ptx {

// d[lane] = f(a[lane], b[lane], ...) for active lanes; the results of other lanes are unspecified.
template <class D, class... S, class F>
Handler lanewise(F) {
    return [](Warp& warp, const Instruction& instruction) {
        const std::uint32_t active = warp.active;
        D* const to = warp.row<D>(instruction.row[0]);
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            if (active == 0xffffffff) {
#pragma GCC ivdep
                for (unsigned lane = 0; lane < kLanes; ++lane)
                    to[lane] = F{}(warp.row<S>(instruction.row[I + 1])[lane]...);
            } else {
                for (unsigned lane = 0; lane < kLanes; ++lane)
                    if (active >> lane & 1) to[lane] = F{}(warp.row<S>(instruction.row[I + 1])[lane]...);
            }
        }(std::index_sequence_for<S...>());
    };
}

// f.operator()<T>() for the C++ type of a PTX type; b is handled as u.
template <class F>
Handler of_type(Type type, F f) {
    const auto integer = [&]<class Unsigned, class Signed>() {
        return type.kind == 's' ? f.template operator()<Signed>() : f.template operator()<Unsigned>();
    };
    if (type.kind == 'f') {
        if (type.bits == 32) return f.template operator()<float>();
        return type.bits == 64 ? f.template operator()<double>() : nullptr;
    }
    switch (type.bits) {
        case 8: return integer.template operator()<std::uint8_t, std::int8_t>();
        case 16: return integer.template operator()<std::uint16_t, std::int16_t>();
        case 32: return integer.template operator()<std::uint32_t, std::int32_t>();
        case 64: return integer.template operator()<std::uint64_t, std::int64_t>();
        default: return nullptr;
    }
}

// For "cvt", which converts from the last type to the one before.
std::optional<Operation> conversion_of(const Mnemonic& mnemonic);

}  // namespace stand_in::ptx
