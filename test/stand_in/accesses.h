// accesses.h - data race detection: the last operation on every two bytes of device memory, and its order with others
#pragma once
#include <algorithm>
#include <vector>

#include "test/stand_in/protocol.h"

namespace stand_in {

// Vector clock: the number of preceding operations in each stream, as the program's calls define it.
class Clock {
public:
    std::uint32_t operator[](std::uint32_t stream) const { return stream < counts_.size() ? counts_[stream] : 0; }
    void set(std::uint32_t stream, std::uint32_t count) {
        if (stream >= counts_.size()) counts_.resize(stream + 1);
        counts_[stream] = count;
    }
    void join(const Clock& other) {
        if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
        for (std::size_t i = 0; i < other.counts_.size(); ++i) counts_[i] = std::max(counts_[i], other.counts_[i]);
    }

private:
    std::vector<std::uint32_t> counts_;
};

// What the device stores of an operation until the process ends.
struct Operation {
    std::string name;
    std::uint32_t stream = 0, place_in_stream = 0;
    Clock before;  // the operations before it
};

// Stores an operation and returns its number, from 1.
std::uint32_t remember(Operation operation);

void memory_is_allocated(std::uintptr_t begin, std::size_t bytes);
void memory_is_freed(std::uintptr_t begin, std::size_t bytes);

// Assigns the following note_access() calls to this operation.
void running(std::uint32_t operation);

// stop() for the running operation, which does `what` at an address in memory that it must not touch.
[[noreturn]] void report_memory(const std::string& what, std::uintptr_t address);

}  // namespace stand_in
