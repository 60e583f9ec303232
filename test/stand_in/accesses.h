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

void memory_is_allocated(std::uintptr_t begin, std::size_t bytes);
void memory_is_freed(std::uintptr_t begin, std::size_t bytes);

// note_access() is from now on the operation's.
void running(std::uint32_t operation);
const Operation& running_operation();

// "byte 12 of an allocation of 400", for messages.
std::string describe_memory(std::uintptr_t address);

}  // namespace stand_in
