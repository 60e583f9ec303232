// operations.h - implementations of the instructions, according to PTX ISA
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "test/stand_in/ptx/warp.h"

namespace stand_in::ptx {

// Type of a register or operand: kind p (predicate), b, u, s or f, and bits.
struct Type {
    char kind = 'b';
    unsigned bits = 32;
    unsigned bytes() const { return kind == 'p' ? 4 : bits / 8; }
    friend bool operator==(const Type&, const Type&) = default;
};
inline constexpr Type kPredicate{'p', 1};
std::optional<Type> type_named(std::string_view text);  // "f32", "pred"

// "fma.rn.f32": {"fma", "rn", "f32"}
using Mnemonic = std::vector<std::string_view>;

// An instruction on registers: row[0] is the result, row[1] and following are operands.
struct Operation {
    Handler handler;
    Type to;
    std::vector<Type> from;
};
// Returns nothing for an unknown instruction.
std::optional<Operation> operation_of(const Mnemonic& mnemonic);

// Moves between a 32 or 64-bit register, row[0], and its halves: row[1] the lower, row[2] the upper one.
Handler halves_of(unsigned bits, bool joins);

// ---- memory: addresses in row[0] (32 bits for shared, else 64), elements in row[1] to row[count]; null: unknown

enum class Space { global, shared, local, parameter };
// `wide`: bits of the register; a shorter load is extended according to the sign of its type.
Handler load_of(Space space, Type type, unsigned register_bytes, unsigned elements);
Handler store_of(Space space, Type type, unsigned register_bytes, unsigned elements);

// ---- instructions of a warp

template <class F>
void for_lanes(std::uint32_t lanes, F f) {
    for (; lanes; lanes &= lanes - 1) f(unsigned(__builtin_ctz(lanes)));
}

// Lane l reads the value of lane l ^ row[4]. row[1] result, row[2] predicate, which becomes true, or kNone, row[3]
// value, row[5] clamp: 31, the whole warp
void shuffle(Warp& warp, const Instruction& instruction);
void do_nothing(Warp& warp, const Instruction& instruction);
// row[0..3] d, row[4..7] a, row[8..9] b, row[10..13] c
void mma_m16n8k16_bf16(Warp& warp, const Instruction& instruction);
// row[0] addresses, row[1..4] registers
Handler ldmatrix_of(bool transposed);
// row[0] shared memory addresses, row[1] global memory addresses, row[2] source bytes; the rest of 16 bytes is zero
void copy_async(Warp& warp, const Instruction& instruction);
// All copies of each lane must have arrived.
void wait_for_copies(Warp& warp, const Instruction& instruction);

}  // namespace stand_in::ptx
