// addresses.h - allocations of the shared memory
#pragma once
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "test/stand_in/protocol.h"

namespace stand_in {

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// The pages of an allocation: start of the first page, and total bytes.
inline std::pair<std::uintptr_t, std::size_t> pages_of(std::uintptr_t address, std::size_t bytes) {
    const std::uintptr_t begin = address / kPage * kPage;
    return {begin, round_up(address + bytes - begin, kPage)};
}

// Maps shared memory at its address, inaccessible until it is allocated.
inline void map_shared(std::uintptr_t begin, std::size_t bytes, int file) {
    void* const wanted = reinterpret_cast<void*>(begin);
    if (mmap(wanted, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, file, 0) != wanted)
        stop(std::string("the addresses of shared memory are not available: ") + std::strerror(errno));
}

// Changes the protection of an allocation's pages in this process.
inline void protect(std::uintptr_t address, std::size_t bytes, int protection) {
    const auto [begin, length] = pages_of(address, bytes);
    if (mprotect(reinterpret_cast<void*>(begin), length, protection) != 0)
        stop(std::string("memory protection cannot be changed: ") + std::strerror(errno));
}

struct Allocation {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
    bool is_live = false;
};

// Allocations by address, including freed ones: no address is used twice.
class Allocations {
public:
    void add(std::uintptr_t address, std::size_t bytes) {
        all_[address] = {address, bytes, true};
        ++live_;
        live_bytes_ += bytes;
    }
    // Returns the size; 0: not a live allocation.
    std::size_t remove(std::uintptr_t address) {
        const auto found = all_.find(address);
        if (found == all_.end() || !std::exchange(found->second.is_live, false)) return 0;
        --live_;
        live_bytes_ -= found->second.bytes;
        return found->second.bytes;
    }
    // The last allocation that starts at or before the address; 0 bytes if none.
    Allocation at_or_before(std::uintptr_t address) const {
        const auto above = all_.upper_bound(address);
        return above == all_.begin() ? Allocation{} : std::prev(above)->second;
    }
    // Describes the allocation of an address.
    std::string describe(std::uintptr_t address) const {
        const Allocation found = at_or_before(address);
        return "byte " + std::to_string(address - found.begin) + " of an allocation of " +
               std::to_string(found.bytes) + (found.is_live ? "" : ", which was freed");
    }
    std::size_t live() const { return live_; }
    std::size_t live_bytes() const { return live_bytes_; }

private:
    std::map<std::uintptr_t, Allocation> all_;
    std::size_t live_ = 0, live_bytes_ = 0;
};

}  // namespace stand_in
