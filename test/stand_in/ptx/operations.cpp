// operations.cpp - instructions on registers, lane by lane
//
// Results that PTX ISA specifies only within a bound (.approx) are the exact ones, rounded. Products and sums without a
// rounding modifier, which ptxas may fuse to one fma, are two operations here.
#include "test/stand_in/ptx/operations.h"

#include <bit>
#include <cmath>
#include <concepts>
#include <limits>
#include <type_traits>

#include "test/stand_in/ptx/lanewise.h"

namespace stand_in::ptx {
namespace {

// Predicate word of the active lanes.
template <class... S, class F>
Handler predicate(F) {
    return [](Warp& warp, const Instruction& instruction) {
        std::uint32_t holds = 0;
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            for (unsigned lane = 0; lane < kLanes; ++lane)
                holds |= std::uint32_t(F{}(warp.row<S>(instruction.row[I + 1])[lane]...)) << lane;
        }(std::index_sequence_for<S...>());
        std::uint32_t& to = *warp.row<std::uint32_t>(instruction.row[0]);
        to = (to & ~warp.active) | (holds & warp.active);
    };
}

template <class F>
Handler of_predicates(F) {
    return [](Warp& warp, const Instruction& instruction) {
        const std::uint32_t a = *warp.row<std::uint32_t>(instruction.row[1]);
        const std::uint32_t b = *warp.row<std::uint32_t>(instruction.row[2]);
        std::uint32_t& to = *warp.row<std::uint32_t>(instruction.row[0]);
        to = (to & ~warp.active) | (F{}(a, b) & warp.active);
    };
}

template <class T>
Handler select() {
    return [](Warp& warp, const Instruction& instruction) {
        const std::uint32_t first = *warp.row<std::uint32_t>(instruction.row[3]);
        T* const to = warp.row<T>(instruction.row[0]);
        const T *const a = warp.row<T>(instruction.row[1]), *const b = warp.row<T>(instruction.row[2]);
#pragma GCC ivdep
        for (unsigned lane = 0; lane < kLanes; ++lane)
            if (warp.active >> lane & 1) to[lane] = first >> lane & 1 ? a[lane] : b[lane];
    };
}

template <class T> struct WideOf;
template <> struct WideOf<std::uint16_t> { using type = std::uint32_t; };
template <> struct WideOf<std::int16_t> { using type = std::int32_t; };
template <> struct WideOf<std::uint32_t> { using type = std::uint64_t; };
template <> struct WideOf<std::int32_t> { using type = std::int64_t; };
template <> struct WideOf<std::uint64_t> { using type = unsigned __int128; };
template <> struct WideOf<std::int64_t> { using type = __int128; };
template <class T> using Wide = typename WideOf<T>::type;
template <class T> constexpr bool is_wide_enough = std::integral<T> && sizeof(T) >= 2;

template <class T> using Bits = std::make_unsigned_t<T>;

// Integers wrap around.
struct Add {
    template <class T> T operator()(T a, T b) const {
        if constexpr (std::integral<T>) return T(Bits<T>(a) + Bits<T>(b));
        else return a + b;
    }
};
struct Subtract {
    template <class T> T operator()(T a, T b) const {
        if constexpr (std::integral<T>) return T(Bits<T>(a) - Bits<T>(b));
        else return a - b;
    }
};
struct Multiply {  // integers: the low half
    template <class T> T operator()(T a, T b) const {
        if constexpr (std::integral<T>) return T(std::uint64_t(a) * std::uint64_t(b));
        else return a * b;
    }
};
// Division by 0 gives all bits set, like the hardware.
struct Divide {
    template <class T> T operator()(T a, T b) const {
        if constexpr (std::floating_point<T>) return a / b;
        else if (b == 0) return T(-1);
        else if (std::signed_integral<T> && b == T(-1)) return T(0 - Bits<T>(a));
        else return T(a / b);
    }
};
struct Remainder {
    template <class T> T operator()(T a, T b) const {
        if (b == 0) return a;
        if (std::signed_integral<T> && b == T(-1)) return 0;
        return T(a % b);
    }
};
// If one operand is NaN, the result is the other.
struct Smaller {
    template <class T> T operator()(T a, T b) const {
        if constexpr (std::floating_point<T>) return std::fmin(a, b);
        else return a < b ? a : b;
    }
};
struct Larger {
    template <class T> T operator()(T a, T b) const {
        if constexpr (std::floating_point<T>) return std::fmax(a, b);
        else return a < b ? b : a;
    }
};
struct Negate {
    template <class T> T operator()(T a) const {
        if constexpr (std::integral<T>) return T(0 - Bits<T>(a));
        else return -a;
    }
};
struct Absolute {
    template <class T> T operator()(T a) const {
        if constexpr (std::integral<T>) return a < 0 ? T(0 - Bits<T>(a)) : a;
        else return std::fabs(a);
    }
};
struct SquareRoot { template <class T> T operator()(T a) const { return std::sqrt(a); } };
struct ReciprocalSquareRoot { template <class T> T operator()(T a) const { return T(1 / std::sqrt(double(a))); } };
struct Reciprocal { template <class T> T operator()(T a) const { return 1 / a; } };
struct Power2 { float operator()(float a) const { return std::exp2(a); } };
// Subnormal numbers become zero of the same sign.
inline float flushed(float a) { return std::fabs(a) < std::numeric_limits<float>::min() ? std::copysign(0.0f, a) : a; }
struct FlushedPower2 { float operator()(float a) const { return flushed(std::exp2(flushed(a))); } };
// The upper 32 of 64 bits; the lower ones are 0.
struct GrossReciprocal {
    double operator()(double a) const {
        const double result = std::fabs(a) < std::numeric_limits<double>::min() ? 1 / std::copysign(0.0, a) : 1 / a;
        const double kept = std::bit_cast<double>(std::bit_cast<std::uint64_t>(result) & 0xffffffff00000000);
        return std::fabs(kept) < std::numeric_limits<double>::min() ? std::copysign(0.0, kept) : kept;
    }
};

template <class F>
std::optional<Operation> unary(Type type, F f) {
    const Handler handler = of_type(type, [&]<class T>() -> Handler {
        if constexpr (std::invocable<F, T>) return lanewise<T, T>(f);
        else return nullptr;
    });
    if (!handler) return {};
    return Operation{handler, type, {type}};
}
template <class F>
std::optional<Operation> binary(Type type, F f) {
    return Operation{of_type(type, [&]<class T>() -> Handler { return lanewise<T, T, T>(f); }), type, {type, type}};
}
template <class F>
std::optional<Operation> binary_of_integers(Type type, F f) {
    const Handler handler = of_type(type, [&]<class T>() -> Handler {
        if constexpr (std::integral<T>) return lanewise<T, T, T>(f);
        else return nullptr;
    });
    if (!handler) return {};
    return Operation{handler, type, {type, type}};
}

constexpr Type kU32{'u', 32};

std::optional<Operation> logic(Type type, std::string_view op) {
    if (type.kind == 'p') {
        Handler handler = nullptr;
        if (op == "and") handler = of_predicates([](std::uint32_t a, std::uint32_t b) { return a & b; });
        if (op == "or") handler = of_predicates([](std::uint32_t a, std::uint32_t b) { return a | b; });
        if (op == "xor") handler = of_predicates([](std::uint32_t a, std::uint32_t b) { return a ^ b; });
        if (op == "not")
            return Operation{of_predicates([](std::uint32_t a, std::uint32_t) { return ~a; }), type, {type}};
        return Operation{handler, type, {type, type}};
    }
    if (op == "and") return binary_of_integers(type, [](auto a, auto b) { return decltype(a)(a & b); });
    if (op == "or") return binary_of_integers(type, [](auto a, auto b) { return decltype(a)(a | b); });
    if (op == "xor") return binary_of_integers(type, [](auto a, auto b) { return decltype(a)(a ^ b); });
    const Handler handler = of_type(type, []<class T>() -> Handler {
        if constexpr (std::integral<T>) return lanewise<T, T>([](T a) { return T(~a); });
        else return nullptr;
    });
    if (!handler) return {};
    return Operation{handler, type, {type}};
}

// Shift amounts beyond the width shift all bits out.
std::optional<Operation> shift(Type type, bool left) {
    const Handler handler = of_type(type, [&]<class T>() -> Handler {
        if constexpr (std::integral<T>) {
            constexpr unsigned bits = 8 * sizeof(T);
            if (left)
                return lanewise<T, T, std::uint32_t>(
                    [](T a, std::uint32_t b) { return b < bits ? T(Bits<T>(a) << b) : T(0); });
            return lanewise<T, T, std::uint32_t>([](T a, std::uint32_t b) {
                if (b < bits) return T(a >> b);
                return T(std::signed_integral<T> ? a >> (bits - 1) : 0);
            });
        } else {
            return nullptr;
        }
    });
    if (!handler) return {};
    return Operation{handler, type, {type, kU32}};
}

std::optional<Operation> multiply(Type type, std::string_view part, bool adds) {
    if (part == "lo" && adds)
        return Operation{of_type(type, []<class T>() -> Handler {
            if constexpr (std::integral<T>)
                return lanewise<T, T, T, T>([](T a, T b, T c) { return Add{}(Multiply{}(a, b), c); });
            else return nullptr;
        }), type, {type, type, type}};
    if (part == "lo") return binary_of_integers(type, Multiply{});
    if (part == "hi" && !adds)
        return Operation{of_type(type, []<class T>() -> Handler {
            if constexpr (is_wide_enough<T>)
                return lanewise<T, T, T>([](T a, T b) { return T((Wide<T>(a) * Wide<T>(b)) >> (8 * sizeof(T))); });
            else return nullptr;
        }), type, {type, type}};
    if (part != "wide" || type.bits > 32) return {};
    const Type wide{type.kind, 2 * type.bits};
    const Handler handler = of_type(type, [&]<class T>() -> Handler {
        if constexpr (is_wide_enough<T>) {
            using W = Wide<T>;
            if (adds) return lanewise<W, T, T, W>([](T a, T b, W c) { return Add{}(Multiply{}(W(a), W(b)), c); });
            return lanewise<W, T, T>([](T a, T b) { return Multiply{}(W(a), W(b)); });
        } else {
            return nullptr;
        }
    });
    if (!handler) return {};
    std::vector<Type> from{type, type};
    if (adds) from.push_back(wide);
    return Operation{handler, wide, from};
}

// Float comparisons are false if one operand is NaN; those with prefix u are true.
template <class T>
Handler comparison(std::string_view name) {
    if constexpr (std::floating_point<T>) {
        if (name == "ltu") return predicate<T, T>([](T a, T b) { return !(a >= b); });
        if (name == "leu") return predicate<T, T>([](T a, T b) { return !(a > b); });
        if (name == "gtu") return predicate<T, T>([](T a, T b) { return !(a <= b); });
        if (name == "geu") return predicate<T, T>([](T a, T b) { return !(a < b); });
        if (name == "equ") return predicate<T, T>([](T a, T b) { return !(a < b || a > b); });
        if (name == "neu") return predicate<T, T>([](T a, T b) { return a != b; });
        if (name == "ne") return predicate<T, T>([](T a, T b) { return a < b || a > b; });
    } else if (name == "ne") {
        return predicate<T, T>([](T a, T b) { return a != b; });
    }
    if (name == "eq") return predicate<T, T>([](T a, T b) { return a == b; });
    if (name == "lt") return predicate<T, T>([](T a, T b) { return a < b; });
    if (name == "le") return predicate<T, T>([](T a, T b) { return a <= b; });
    if (name == "gt") return predicate<T, T>([](T a, T b) { return a > b; });
    if (name == "ge") return predicate<T, T>([](T a, T b) { return a >= b; });
    return nullptr;
}

// Inserts the lowest bits of a into b at a position.
std::uint32_t insert_bits(std::uint32_t a, std::uint32_t b, std::uint32_t position, std::uint32_t length) {
    position &= 0xff;
    length &= 0xff;
    if (position >= 32 || length == 0) return b;
    const std::uint32_t ones = length >= 32 ? 0xffffffff : (1u << length) - 1;
    return (b & ~(ones << position)) | (a & ones) << position;
}

std::optional<Operation> of_numbers(const Mnemonic& mnemonic, Type type) {
    const std::string_view op = mnemonic[0];
    const std::size_t size = mnemonic.size();
    const bool plain = size == 2, number = type.kind == 'f';
    const auto is = [&](std::string_view name, std::string_view modifier) {
        return op == name && size == 3 && mnemonic[1] == modifier;
    };
    if (number ? plain || (size == 3 && mnemonic[1] == "rn") : plain) {
        if (op == "add") return binary(type, Add{});
        if (op == "sub") return binary(type, Subtract{});
        if (op == "mul" && number) return binary(type, Multiply{});
    }
    if (plain) {
        if (op == "min") return binary(type, Smaller{});
        if (op == "max") return binary(type, Larger{});
        if (op == "neg") return unary(type, Negate{});
        if (op == "abs") return unary(type, Absolute{});
        if (op == "div" && !number) return binary_of_integers(type, Divide{});
        if (op == "rem") return binary_of_integers(type, Remainder{});
    }
    if (number && (is("div", "rn") || (is("div", "approx") && type.bits == 32))) return binary(type, Divide{});
    if (number && is("sqrt", "rn"))
        return type.bits == 32 ? Operation{lanewise<float, float>(SquareRoot{}), type, {type}}
                               : Operation{lanewise<double, double>(SquareRoot{}), type, {type}};
    if (number && is("rcp", "rn"))
        return type.bits == 32 ? Operation{lanewise<float, float>(Reciprocal{}), type, {type}}
                               : Operation{lanewise<double, double>(Reciprocal{}), type, {type}};
    if (number && is("fma", "rn"))
        return Operation{type.bits == 32
                             ? lanewise<float, float, float, float>(
                                   [](float a, float b, float c) { return __builtin_fmaf(a, b, c); })
                             : lanewise<double, double, double, double>(
                                   [](double a, double b, double c) { return __builtin_fma(a, b, c); }),
                         type, {type, type, type}};
    if (number && type.bits == 32) {
        if (is("ex2", "approx")) return Operation{lanewise<float, float>(Power2{}), type, {type}};
        if (is("rsqrt", "approx")) return Operation{lanewise<float, float>(ReciprocalSquareRoot{}), type, {type}};
        if (op == "ex2" && size == 4 && mnemonic[1] == "approx" && mnemonic[2] == "ftz")
            return Operation{lanewise<float, float>(FlushedPower2{}), type, {type}};
    }
    if (op == "rcp" && size == 4 && mnemonic[1] == "approx" && mnemonic[2] == "ftz" && number && type.bits == 64)
        return Operation{lanewise<double, double>(GrossReciprocal{}), type, {type}};
    return {};
}

template <class Whole, class Half>
void join(Warp& warp, const Instruction& instruction) {
    for (unsigned lane = 0; lane < kLanes; ++lane)
        if (warp.active >> lane & 1)
            warp.row<Whole>(instruction.row[0])[lane] =
                Whole(warp.row<Half>(instruction.row[2])[lane]) << (8 * sizeof(Half)) |
                warp.row<Half>(instruction.row[1])[lane];
}
template <class Whole, class Half>
void split(Warp& warp, const Instruction& instruction) {
    for (unsigned lane = 0; lane < kLanes; ++lane) {
        if (!(warp.active >> lane & 1)) continue;
        const Whole whole = warp.row<Whole>(instruction.row[0])[lane];
        warp.row<Half>(instruction.row[1])[lane] = Half(whole);
        warp.row<Half>(instruction.row[2])[lane] = Half(whole >> (8 * sizeof(Half)));
    }
}

}  // namespace

Handler halves_of(unsigned bits, bool joins) {
    if (bits == 64) return joins ? join<std::uint64_t, std::uint32_t> : split<std::uint64_t, std::uint32_t>;
    return joins ? join<std::uint32_t, std::uint16_t> : split<std::uint32_t, std::uint16_t>;
}

std::optional<Type> type_named(std::string_view text) {
    if (text == "pred") return kPredicate;
    if (text.size() < 2 || std::string_view("busf").find(text[0]) == std::string_view::npos) return {};
    const auto digits = text.substr(1);
    for (const unsigned bits : {8, 16, 32, 64})
        if (digits == std::to_string(bits)) return Type{text[0], bits};
    return {};
}

std::optional<Operation> operation_of(const Mnemonic& mnemonic) {
    const std::string_view op = mnemonic[0];
    const auto last = type_named(mnemonic.back());
    if (!last || mnemonic.size() < 2) return {};
    const Type type = *last;
    if (op == "cvt" && mnemonic.size() >= 3) return conversion_of(mnemonic);
    if (op == "cvta") {  // generic addresses equal global addresses
        if (mnemonic.size() == 4 && mnemonic[1] == "to" && mnemonic[2] == "global")
            return Operation{lanewise<std::uint64_t, std::uint64_t>([](std::uint64_t a) { return a; }), type, {type}};
        return {};
    }
    if (op == "setp" && mnemonic.size() == 3 && type.kind != 'p') {
        const Handler handler = of_type(type, [&]<class T>() { return comparison<T>(mnemonic[1]); });
        if (handler) return Operation{handler, kPredicate, {type, type}};
        return {};
    }
    if ((op == "mul" || op == "mad") && mnemonic.size() == 3 && type.kind != 'f')
        return multiply(type, mnemonic[1], op == "mad");
    if (mnemonic.size() == 2) {
        if (op == "mov") {
            if (type.kind == 'p')
                return Operation{of_predicates([](std::uint32_t a, std::uint32_t) { return a; }), type, {type}};
            return Operation{of_type({'b', type.bits}, []<class T>() -> Handler {
                                 return lanewise<T, T>([](T a) { return a; });
                             }), type, {type}};
        }
        if (op == "selp")
            return Operation{of_type({'b', type.bits}, []<class T>() -> Handler { return select<T>(); }), type,
                             {type, type, kPredicate}};
        if (op == "and" || op == "or" || op == "xor" || op == "not") return logic(type, op);
        if (op == "shl" || op == "shr") return shift(type, op == "shl");
        if (op == "bfi" && type.bits == 32)
            return Operation{lanewise<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>(
                                 [](std::uint32_t a, std::uint32_t b, std::uint32_t position, std::uint32_t length) {
                                     return insert_bits(a, b, position, length);
                                 }), type, {type, type, kU32, kU32}};
    }
    return type.kind == 'p' ? std::nullopt : of_numbers(mnemonic, type);
}

}  // namespace stand_in::ptx
