// stand_in.h - interface of the stand-ins: CUDA's runtime is the device, to which cuBLASLt, NCCL and kernels submit
// work; does not depend on CUDA
//
// The device is a separate process of the same program, started by the first call; it does not run main(). Device
// memory is one range at the same address in both processes, which only the device process may access; pinned memory is
// shared; other memory is private to the host. So everything that an operation needs must be in its payload.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

struct CUstream_st;  // cudaStream_t points to it

extern "C" const char program_begin[] asm("__executable_start");  // code is sent as its offset from here

namespace stand_in {

// Runs in the device process on a copy of the payload, which persists until the work is done. Returns false while it
// waits for another process; it is called again after other work had its turn.
using Work = bool (*)(std::byte* payload);

// Bytes of device memory that an operation reads, or writes too.
struct Range {
    const void* begin;
    std::size_t bytes;
    bool written;
};

// ---- in the host process

// Longest payload.
inline constexpr std::size_t kMostPayload = 128 * 1024;

inline constexpr double kMicrosecond = 0x1p-20;

// Enqueues an operation and returns at once. Messages show its `name`; an error on the device ends the program.
// `seconds`: its duration on the device's clock, by default a binary microsecond: sums of those are exact.
void enqueue(CUstream_st* stream, std::string_view name, Work work, std::span<const std::byte> payload,
             std::span<const Range> ranges, double seconds = kMicrosecond);

// Called first in every library function: whether this call must fail. STAND_IN_FAIL="FUNCTION:N" selects the N-th
// call, from 1; "FUNCTION:N+" that one and every later call of any function, as after a kernel that fails on a GPU;
// "FUNCTION:N@RANK" only on that rank of Open MPI.
bool failure_injected(std::string_view function);

// ---- in the device process

// Its main function.
int run_device();

// Called by the running operation before it touches device memory. Stops the program if the memory is outside of
// allocations, or if another operation touched it without an order between the two.
void note_access(const void* address, std::size_t bytes, bool written);

// ---- in either process

// A number from the environment.
std::int64_t setting(const char* variable, std::int64_t otherwise);

// Prints the program's error as one line on standard error and ends both processes.
[[noreturn]] void stop(const std::string& what);

}  // namespace stand_in

// First statement of every library function, except those that release or wait: these do so even if they fail.
#define STAND_IN_MAY_FAIL(status) \
    if (stand_in::failure_injected(__func__)) return status
