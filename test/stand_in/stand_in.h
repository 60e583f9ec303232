// stand_in.h - interface shared by the stand-ins for NVIDIA's libraries: libcudart's implements it and is the device;
// those of cuBLASLt and NCCL submit work to it
//
// The device is a separate process of the same program, started by the first call; it does not run main(). Device
// memory is one range at the same address in both processes, which only the device process may access; pinned memory is
// shared; other memory is private to the host. So an operation can run in either process, but everything it needs must
// be in its payload, byte by byte.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "test/stand_in/program.h"

namespace stand_in {

// Bytes of device memory that an operation reads, or writes too.
struct Range {
    const void* begin;
    std::size_t bytes;
    bool written;
};

// Longest payload.
inline constexpr std::size_t kMostPayload = 128 * 1024;

// Enqueues an operation and returns at once. Messages show its `name`; an error on the device ends the program.
// `seconds`: its duration on the device's clock.
void enqueue(cudaStream_t stream, std::string_view name, Work work, std::span<const std::byte> payload,
             std::span<const Range> ranges, double seconds = 1e-6);

// Called first in every library function: whether this call must fail. STAND_IN_FAIL="FUNCTION:N" selects the N-th
// call, from 1; "FUNCTION:N+" that one and every later call of any function, as after a kernel that fails on a GPU;
// "FUNCTION:N@RANK" only on that rank of Open MPI.
bool failure_injected(std::string_view function);

// Records a handle that the program must release before it ends. `kind`, such as "cublasLtMatmulDesc_t", is for
// messages.
void made(const void* handle, std::string_view kind);
// Records the release of a handle; ends the program if it is invalid or was already released.
void released(const void* handle, std::string_view kind);

// A number from the environment; settings.cpp has checked its format.
std::int64_t setting(const char* variable, std::int64_t otherwise);

}  // namespace stand_in

// First statement of every library function, except those that release or wait: these do so even if they fail.
#define STAND_IN_MAY_FAIL(status) \
    if (stand_in::failure_injected(__func__)) return status
