// warp.h - blocks of a launch, warps of a block: 32 lanes that share an instruction where they are at the same one
#pragma once
#include <cstring>
#include <deque>
#include <span>
#include <vector>

#include "test/stand_in/ptx/function.h"

namespace stand_in::ptx {

struct Dim3 { unsigned x = 1, y = 1, z = 1; };
constexpr std::uint64_t count(const Dim3& d) { return std::uint64_t(d.x) * d.y * d.z; }

struct Traffic;

struct Launch {
    const Function* function;
    Dim3 grid, block;
    std::uint32_t dynamic_shared = 0;
    const std::byte* parameters = nullptr;
    std::uint32_t parameter_bytes = 0;
    // In which order blocks, warps of a block, and lanes of a warp that have parted go on: as they come, the last one
    // first, or drawn from the seed.
    enum class Order { forward, backward, random } order = Order::forward;
    std::uint64_t seed = 1;
    Traffic* traffic = nullptr;  // for each of function->places, or none
};
void run(const Launch& launch);

// What the kernel did wrong, where the running warp is: ends the program.
[[noreturn]] void fail(const Warp& warp, const std::string& what);

// What a kernel asks of a GPU's memories, counted as their documentation says that they serve it (CUDA C++ Best
// Practices Guide): global memory in sectors of 32 bytes, shared memory in 32 banks of 4 bytes, each of which serves
// one word at a time, to accesses of at most 128 bytes of lanes that follow each other.
struct Traffic {
    std::uint64_t instructions = 0;                        // of warps
    std::uint64_t global_accesses = 0, global_bytes = 0;   // of warps; of their lanes
    std::uint64_t sectors = 0;                             // that the accesses touch, each by itself
    std::uint64_t shared_passes = 0, bank_passes = 0;      // at least; and as banks are asked twice

    void add(const Traffic& other);
};

// A copy of cp.async that has not arrived.
struct Copy {
    unsigned lane;
    std::uint32_t group, shared, bytes;
    const std::byte* global;
};

struct Warp {
    const Function* function = nullptr;
    const std::byte* parameters = nullptr;
    std::uint32_t parameter_bytes = 0;
    std::byte* registers = nullptr;
    std::byte* local = nullptr;    // local_bytes for each lane
    std::span<std::byte> shared;   // the block's
    std::uint32_t active = 0;      // lanes that execute the instruction
    std::uint32_t pc = 0;          // which is this one, of active lanes
    std::deque<Copy> copies;
    std::array<std::uint32_t, kLanes> copy_group{};  // that the lane's next copy belongs to
    Traffic* traffic = nullptr;  // for each of Function::places, where it is counted

    template <class T> T* row(std::uint32_t at) const { return reinterpret_cast<T*>(registers + at); }
};

}  // namespace stand_in::ptx
