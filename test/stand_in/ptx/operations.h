// operations.h - what each instruction computes, as PTX ISA says
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "test/stand_in/ptx/warp.h"

namespace stand_in::ptx {

// Of a register or an operand: kind p (predicate), b, u, s or f, and bits.
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

// An instruction of registers alone: row[0] is the result's, row[1] on those of its operands.
struct Operation {
    Handler handler;
    Type to;
    std::vector<Type> from;
};
// Nothing: it is not known here.
std::optional<Operation> operation_of(const Mnemonic& mnemonic);

// Between a register of 32 or 64 bits, row[0], and the halves of its bits, row[1], the lower one, and row[2].
Handler halves_of(unsigned bits, bool joins);

// ---- memory: addresses in row[0] (32 bits of shared, else 64), elements in row[1] to row[count]; null: not known

enum class Space { global, shared, local, parameter };
// `wide` is what the register has bits of; a load of fewer extends the value by the sign of its type.
Handler load_of(Space space, Type type, unsigned register_bytes, unsigned elements);
Handler store_of(Space space, Type type, unsigned register_bytes, unsigned elements);

// ---- of a warp

// row[1] the result's, row[2] whether there was a lane to take it from or kNone, row[3] value, row[4] lane, row[5]
// clamp
Handler shuffle_of(std::string_view mode);
void do_nothing(Warp& warp, const Instruction& instruction);
// row[0..3] d, row[4..7] a, row[8..9] b, row[10..13] c
void mma_m16n8k16_bf16(Warp& warp, const Instruction& instruction);
// row[0] addresses, row[1..count] registers
Handler ldmatrix_of(bool transposed);
// row[0] addresses in shared memory, row[1] in global memory, row[2] bytes of it, the rest of 16 are zero
void copy_async(Warp& warp, const Instruction& instruction);
void commit_copies(Warp& warp, const Instruction& instruction);
// The newest immediate groups of each lane need not have arrived.
void wait_for_copies(Warp& warp, const Instruction& instruction);

}  // namespace stand_in::ptx
