// simt_race_place.h - which source line an instruction of this program comes from. For simt_race.cpp alone
#pragma once
#include <cstdint>
#include <string>
#include <utility>

namespace simt::races {

// From the begin of the program in memory: 32 bits instead of 64.
inline std::uint32_t code_offset(const void* code) {
    extern char program_begin[] asm("__executable_start");
    return std::uint32_t(static_cast<const char*>(code) - program_begin);
}

// "kernels/reduce.cuh:43, called at kernels/classifier.cu:80" of the instructions before the two offsets; inlined calls
// are followed outwards, but not through the executor itself. Where binutils' addr2line is missing, the offset.
std::pair<std::string, std::string> source_places(std::uint32_t first, std::uint32_t second);

}  // namespace simt::races
