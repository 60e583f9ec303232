// simt_race_place.h - the source location of an instruction of this program. Only for simt_race.cpp
#pragma once
#include <cstdint>
#include <string>
#include <utility>

namespace simt::races {

// Offset from the start of the program in memory: 32 bits instead of 64.
inline std::uint32_t code_offset(const void* code) {
    extern char program_begin[] asm("__executable_start");
    return std::uint32_t(static_cast<const char*>(code) - program_begin);
}

// The locations of the instructions before the two offsets: "kernels/reduce.cuh:43, called at
// kernels/classifier.cu:80". Includes the callers of inlined functions, but not the executor itself. Without binutils'
// addr2line: the offset.
std::pair<std::string, std::string> source_locations(std::uint32_t first, std::uint32_t second);

}  // namespace simt::races
