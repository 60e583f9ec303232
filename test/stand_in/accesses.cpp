// accesses.cpp - stores for every two bytes the last writer and up to two readers since, and detects races
#include "test/stand_in/accesses.h"

#include <sys/mman.h>

#include <array>
#include <deque>

#include "test/stand_in/addresses.h"

namespace stand_in {
namespace {

struct Cell {
    std::uint32_t writer = 0;
    std::array<std::uint32_t, 2> readers{};
};
constexpr std::size_t kCellBytes = 2;  // granularity: operations on different bytes of a cell seem to race

Cell* sparse_cells(std::size_t count) {  // zeros; uses memory only where it is written
    void* const memory = mmap(nullptr, count * sizeof(Cell), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) stop("no address space to track accesses");
    return static_cast<Cell*>(memory);
}

struct Accesses {
    Cell* const cells = sparse_cells(kDeviceBytes / kCellBytes);
    Allocations allocations;
    std::uintptr_t begin = 0, end = 0;  // of the last accessed allocation
    std::deque<Operation> operations{1};
    std::uint32_t current = 0;
    const Operation* mine = nullptr;

    bool is_before(std::uint32_t earlier) const {
        const Operation& other = operations[earlier];
        return mine->before[other.stream] >= other.place_in_stream;
    }
    bool find(std::uintptr_t address, std::size_t bytes) {
        if (address >= begin && address + bytes <= end) return true;
        const Allocation found = allocations.at_or_before(address);
        if (!found.is_live || address + bytes > found.begin + found.bytes) return false;
        begin = found.begin;
        end = found.begin + found.bytes;
        return true;
    }
    [[noreturn]] void race(std::uintptr_t address, std::uint32_t other, const char* did, const char* does) const {
        stop("race: \"" + mine->name + "\" on stream " + std::to_string(mine->stream) + " " + does + " " +
             allocations.describe(address) + " that \"" + operations[other].name + "\" on stream " +
             std::to_string(operations[other].stream) + " " + did +
             ", and nothing orders the two: no event, no wait of the host");
    }
};

Accesses& accesses() {
    static Accesses& only = *new Accesses;
    return only;
}

}  // namespace

std::uint32_t remember(Operation operation) {
    accesses().operations.push_back(std::move(operation));
    return std::uint32_t(accesses().operations.size() - 1);
}

void running(std::uint32_t operation) {
    accesses().current = operation;
    accesses().mine = &accesses().operations[operation];
}

void memory_is_allocated(std::uintptr_t begin, std::size_t bytes) {
    accesses().allocations.add(begin, bytes);
}

void memory_is_freed(std::uintptr_t begin, std::size_t bytes) {
    Accesses& all = accesses();
    all.allocations.remove(begin);
    all.begin = all.end = 0;
    if (!is_device(reinterpret_cast<void*>(begin))) return;
    // whole pages; no address is used twice
    const auto first = reinterpret_cast<std::uintptr_t>(all.cells + (begin - kDeviceBegin) / kCellBytes);
    const std::uintptr_t page = (first + kPage - 1) / kPage * kPage;
    const std::uintptr_t end = (first + bytes / kCellBytes * sizeof(Cell)) / kPage * kPage;
    if (end > page) madvise(reinterpret_cast<void*>(page), end - page, MADV_DONTNEED);
}

void report_memory(const std::string& what, std::uintptr_t address) {
    const Accesses& all = accesses();
    stop("\"" + all.mine->name + "\" " + what + " at " + all.allocations.describe(address));
}

void note_access(const void* where, std::size_t bytes, bool written) {
    const auto address = reinterpret_cast<std::uintptr_t>(where);
    if (address - kDeviceBegin >= kDeviceBytes || bytes == 0) return;
    Accesses& all = accesses();
    if (!all.find(address, bytes))
        report_memory((written ? "writes " : "reads ") + std::to_string(bytes) + " bytes", address);
    const std::uint32_t current = all.current;
    Cell* cell = all.cells + (address - kDeviceBegin) / kCellBytes;
    const Cell* const end = all.cells + (address + bytes - 1 - kDeviceBegin) / kCellBytes + 1;
    for (; cell < end; ++cell) {
        const auto here = [&] {
            return std::max(address, kDeviceBegin + std::uintptr_t(cell - all.cells) * kCellBytes);
        };
        if (cell->writer != current && cell->writer && !all.is_before(cell->writer))
            all.race(here(), cell->writer, "wrote", written ? "writes" : "reads");
        if (written) {
            for (std::uint32_t& reader : cell->readers) {
                if (reader && reader != current && !all.is_before(reader)) all.race(here(), reader, "read", "writes");
                reader = 0;
            }
            cell->writer = current;
        } else if (cell->readers[0] != current && cell->readers[1] != current) {
            // Keeps two unordered readers at most.
            auto& [one, two] = cell->readers;
            if (one == 0 || all.is_before(one)) one = current;
            else two = current;
        }
    }
}

}  // namespace stand_in
