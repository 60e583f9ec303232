// function.h - a kernel's PTX from the program, decoded for warps that execute it lane by lane
//
// PTX is NVIDIA's documented instruction set for all GPU generations (PTX ISA); ptxas, or the driver, compiles it to
// machine code. A register is a row of the warp's register file with an element per lane; constants and special
// registers are rows, too, so that an instruction refers only to rows.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stand_in::ptx {

inline constexpr unsigned kLanes = 32;
inline constexpr std::size_t kMostShared = 227 * 1024;  // per block, on compute capability 9.0
inline constexpr std::uint32_t kNone = 0xffffffff;

struct Warp;
struct Instruction;
using Handler = void (*)(Warp& warp, const Instruction& instruction);

struct Instruction {
    // Actions of the warp itself; the handler does everything else.
    enum class Kind : std::uint8_t {
        plain,
        branch,       // to `target`
        end,          // ends the lanes
        with_lanes,   // handler, once all lanes of mask row[0] have arrived
        with_warp,    // handler, once all lanes of the warp have arrived
        block_barrier
    } kind = Kind::plain;
    bool guard_negated = false;
    std::uint8_t count = 0;       // elements of a vector, or matrices
    std::uint32_t guard = kNone;  // row of a predicate: one word with a bit per lane
    std::uint32_t target = 0;
    Handler handler = nullptr;
    std::array<std::uint32_t, 14> row{};  // results first; byte offsets in the register file
    std::int64_t immediate = 0;           // offset of an address
    std::uint32_t place = 0;              // in Function::places
};

struct Function {
    // Special registers of 32 bits.
    enum class Special { tid_x, tid_y, tid_z, ntid_x, ntid_y, ntid_z, ctaid_x, ctaid_y, ctaid_z, nctaid_x, nctaid_y,
                         nctaid_z, laneid };
    struct SpecialRow { Special special; std::uint32_t row; };
    struct Constant { std::uint64_t bits; std::uint32_t row, bytes; };

    std::string name;
    std::vector<Instruction> code;
    std::vector<Constant> constants;
    std::vector<SpecialRow> specials;
    std::vector<std::string> places;  // "FILE:LINE" of the source, or of the PTX
    std::uint32_t register_bytes = 0, local_bytes = 0, shared_bytes = 0;
    // Offset of dynamic shared memory, and the row that holds it.
    std::uint32_t dynamic_shared_at = 0, dynamic_base_row = kNone;
};

// A parameter of a kernel: its position in the parameter bytes.
struct Parameter { std::uint32_t offset, bytes; };

// What the host needs to know of a kernel.
struct Signature {
    std::vector<Parameter> parameters;
    std::uint32_t parameter_bytes = 0;
    unsigned most_threads = 1024;  // per block
};

// Kernels of kernels.ptx, which is next to this library, by mangled name; nullptr if there is none. PTX that cannot be
// read or executed ends the program.
const Signature* signature_of(std::string_view kernel);
const Function* function_of(std::string_view kernel);

// Decodes one kernel of a module given as text.
Function decode(std::string_view module, std::string_view kernel);

}  // namespace stand_in::ptx
