// accesses.h - which operation last touched each two bytes of device memory, and whether another one may touch them now
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "test/stand_in/clocks.h"

namespace stand_in {

// What the device remembers of an operation, for as long as it lives.
struct Operation {
    std::string name;
    std::uint32_t stream = 0, place_in_stream = 0, site = 0;
    Clock before;  // what comes before it
};

// Numbers them from 1.
std::uint32_t remember(Operation operation);

// At a call site of the host.
void memory_is_allocated(std::uintptr_t begin, std::size_t bytes, std::uint32_t site);
void memory_is_freed(std::uintptr_t begin, std::size_t bytes, std::uint32_t site);

// note_access() is from now on the operation's.
void running(std::uint32_t operation);
const Operation& running_operation();

// report_wrong() of the operation that runs, and of memory that it must not touch: `what` goes on with which allocation
// that is.
[[noreturn]] void report_memory(const std::string& what, std::uintptr_t address);

}  // namespace stand_in
