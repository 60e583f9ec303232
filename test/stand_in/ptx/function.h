// function.h - a kernel as nvcc leaves it in the program: PTX, decoded for warps that run it lane by lane
//
// PTX is NVIDIA's documented instruction set for GPUs of all generations (PTX ISA); ptxas, or the driver, makes machine
// code of it. Every register is a row of the warp's register file, with an element for each of the 32 lanes; constants
// and special registers are rows, too, so that an instruction knows only rows.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stand_in::ptx {

inline constexpr unsigned kLanes = 32;
inline constexpr std::size_t kMostShared = 227 * 1024;  // of a block, on compute capability 9.0
inline constexpr std::uint32_t kNone = 0xffffffff;

struct Warp;
struct Instruction;
using Handler = void (*)(Warp& warp, const Instruction& instruction);

struct Instruction {
    // What the warp itself does; all else is the handler's.
    enum class Kind : std::uint8_t {
        plain,
        branch,       // to `target`
        end,          // of the lanes
        with_lanes,   // handler, once all lanes of mask row[0] are here
        with_warp,    // handler, once all lanes of the warp are here
        block_barrier
    } kind = Kind::plain;
    bool guard_negated = false;
    std::uint8_t count = 0;       // of elements of a vector, of matrices
    std::uint32_t guard = kNone;  // row of a predicate, which is one word with a bit for each lane
    std::uint32_t target = 0;
    Handler handler = nullptr;
    std::array<std::uint32_t, 14> row{};  // results first; in bytes from the begin of the register file
    std::int64_t immediate = 0;           // of an address, behind the base; of cp.async.wait_group
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
    // In shared memory, of what is as long as the launch says; and the row that is told of it.
    std::uint32_t dynamic_shared_at = 0, dynamic_base_row = kNone;
};

// A parameter of a kernel, in the bytes of all.
struct Parameter { std::uint32_t offset, bytes; };

// What the host must know of a kernel.
struct Signature {
    std::vector<Parameter> parameters;
    std::uint32_t parameter_bytes = 0;
    unsigned most_threads = 1024;  // of a block
};

// Of the kernels in kernels.ptx, which lies beside this library, by the names that the compiler gave them; null: there
// is none of that name. What cannot be read, or executed here, ends the program.
const Signature* signature_of(std::string_view kernel);
const Function* function_of(std::string_view kernel);

// What the kernels that ran asked of memory, into the file that STAND_IN_TRAFFIC names; nothing without it.
void write_traffic();

// One kernel of a module that is given as text.
Function decode(std::string_view module, std::string_view kernel);

}  // namespace stand_in::ptx
