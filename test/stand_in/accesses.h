// accesses.h - data race detection: the last operation on every two bytes of device memory, and its order with others
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "test/stand_in/clocks.h"

namespace stand_in {

// What the device stores of an operation until the process ends.
struct Operation {
    std::string name;
    std::uint32_t stream = 0, place_in_stream = 0, site = 0;
    Clock before;  // the operations before it
};

// Stores an operation and returns its number, from 1.
std::uint32_t remember(Operation operation);

// `site` is the call site in the host code.
void memory_is_allocated(std::uintptr_t begin, std::size_t bytes, std::uint32_t site);
void memory_is_freed(std::uintptr_t begin, std::size_t bytes, std::uint32_t site);

// Assigns the following note_access() calls to this operation.
void running(std::uint32_t operation);
const Operation& running_operation();

// report_wrong() for the running operation and memory that it must not touch; appends the allocation of `address` to
// `what`.
[[noreturn]] void report_memory(const std::string& what, std::uintptr_t address);

}  // namespace stand_in
