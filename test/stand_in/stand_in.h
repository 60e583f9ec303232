// stand_in.h - what the stand-ins for NVIDIA's libraries share: libcudart's, which is the device, offers it; those of
// cuBLASLt and NCCL give it their work
//
// The device is a process of its own, started by the first call: the same program, which does not get to main().
// Device memory is one range at the same address in both, which only the device may touch; pinned memory is shared; all
// else is the host's alone. So code runs in either process but memory does not travel: what an operation needs goes
// into its payload, byte by byte.
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

// Enqueues an operation, whose `name` messages show, and returns at once; what goes wrong on the device ends the
// program. `seconds` is how long the device's clock says that it took.
void enqueue(cudaStream_t stream, std::string_view name, Work work, std::span<const std::byte> payload,
             std::span<const Range> ranges, double seconds = 1e-6);

// At the begin of every function of a library: whether this call was told to fail, by
// STAND_IN_FAIL="FUNCTION:N", N counted from 1, or "FUNCTION:N@RANK", on that rank of Open MPI's alone.
bool told_to_fail(std::string_view function);

// A handle that the program must give back before it ends, and did. `kind` as messages show it: "cublasLtMatmulDesc_t".
void made(const void* handle, std::string_view kind);
// Ends the program where the handle is none, or was given back before.
void given_back(const void* handle, std::string_view kind);

// A number from the environment: one of settings.cpp, which refuses what no number is.
std::int64_t setting(const char* variable, std::int64_t otherwise);

}  // namespace stand_in

// Every function of a library begins with it; those that give back do so all the same.
#define STAND_IN_MAY_FAIL(status) \
    if (stand_in::told_to_fail(__func__)) return status
