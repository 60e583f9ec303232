// available_memory.h - how much host memory the process may still allocate
#pragma once
#include <cstddef>
#include <filesystem>

namespace device {

// In bytes: the minimum of MemAvailable, the kernel's estimate of what can be allocated without swapping, and what is
// left in the process' control group and all its ancestors (control_groups.h). The inactive page cache is reclaimable,
// so it does not count as used. 0: unknown. `root` is the folder that holds /proc and /sys.
std::size_t available_memory(const std::filesystem::path& root = "/");

// Bytes left below the process' address space limit (`ulimit -v`), at least 1; 0: no limit.
std::size_t address_space_left(const std::filesystem::path& root = "/");

}  // namespace device
