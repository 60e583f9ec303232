// available_memory.h - how much memory of the machine a process may still take
#pragma once
#include <cstddef>
#include <filesystem>

namespace device {

// What the kernel believes can be had without swapping (MemAvailable), and within the limits of the control groups that
// the process is in: its own and all above it, of version 1 or 2; the smallest room counts. Cached files that nobody
// has touched of late make room, so they are not counted as used. Bytes; 0: unknown. `root` is where /proc and /sys
// are.
std::size_t available_memory(const std::filesystem::path& root = "/");

// What the limit of this process' address space (`ulimit -v`) leaves, in bytes, at least 1; 0: there is no limit.
std::size_t address_space_left(const std::filesystem::path& root = "/");

}  // namespace device
