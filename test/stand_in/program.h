// program.h - the two processes of a program linked with the stand-ins; does not depend on CUDA
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

struct CUstream_st;  // cudaStream_t points to it

namespace stand_in {

// Runs in the device process on a copy of the payload, which persists until the work is done. Returns false while it
// waits for another process; it is called again after other work had its turn.
using Work = bool (*)(std::byte* payload);

// ---- in the host process

// cudaLaunchKernelExC: enqueues a kernel. Returns whether the launch succeeded.
bool launch(CUstream_st* stream, std::string_view name, Work work, std::span<const std::byte> payload);

// ---- in the device process

// Its main function.
int run_device();

// Called by the running operation before it touches device memory. Stops the program if the memory is outside of
// allocations, or if another operation touched it without an order between the two.
void note_access(const void* address, std::size_t bytes, bool written);

// ---- in either process

// Prints the program's error as one line on standard error and exits.
[[noreturn]] void stop(const std::string& what);

}  // namespace stand_in
