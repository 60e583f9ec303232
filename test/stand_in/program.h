// program.h - the two processes of a program with the stand-ins, without a word of CUDA
#pragma once
#include <cstddef>
#include <string>

namespace stand_in {

// Runs in the device process, on a copy of the payload that stays the same one until the work is done. False: it waits
// for another process; it is called again after others had their turn.
using Work = bool (*)(std::byte* payload);

// ---- in the device process

// What main() is there.
int run_device();

// The operation that runs touches device memory: where it lies outside of allocations, or another operation touched it
// and nothing orders the two, that is what the program did wrong.
void note_access(const void* address, std::size_t bytes, bool written);

// ---- in either

// What the program did wrong, as one line on standard error, and its end.
[[noreturn]] void stop(const std::string& what);

}  // namespace stand_in
