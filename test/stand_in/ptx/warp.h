// warp.h - blocks of a launch and warps of a block: 32 lanes, which execute an instruction together if they are at it
#pragma once
#include <cstring>
#include <deque>
#include <span>
#include <vector>

#include "test/stand_in/ptx/function.h"

namespace stand_in::ptx {

struct Dim3 { unsigned x = 1, y = 1, z = 1; };
constexpr std::uint64_t count(const Dim3& d) { return std::uint64_t(d.x) * d.y * d.z; }

struct Launch {
    const Function* function;
    Dim3 grid, block;
    std::uint32_t dynamic_shared = 0;
    const std::byte* parameters = nullptr;
    std::uint32_t parameter_bytes = 0;
    // Order of blocks, of warps of a block, and of diverged lanes of a warp: in order, last first, or drawn from the
    // seed.
    enum class Order { forward, backward, random } order = Order::forward;
    std::uint64_t seed = 1;
};
void run(const Launch& launch);

// Reports an error of the kernel at the position of the running warp and ends the program.
[[noreturn]] void fail(const Warp& warp, const std::string& what);

// A cp.async copy that has not arrived.
struct Copy {
    unsigned lane;
    std::uint32_t shared, bytes;
    const std::byte* global;
};

struct Warp {
    const Function* function = nullptr;
    const std::byte* parameters = nullptr;
    std::uint32_t parameter_bytes = 0;
    std::byte* registers = nullptr;
    std::byte* local = nullptr;    // local_bytes per lane
    std::span<std::byte> shared;   // of the block
    std::uint32_t active = 0;      // lanes that execute the instruction
    std::uint32_t pc = 0;          // of the active lanes
    std::deque<Copy> copies;

    template <class T> T* row(std::uint32_t at) const { return reinterpret_cast<T*>(registers + at); }
};

}  // namespace stand_in::ptx
