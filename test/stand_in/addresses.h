// addresses.h - allocated addresses of the shared memory
#pragma once
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "test/stand_in/protocol.h"

namespace stand_in {

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// The pages of an allocation: start of the first page, and total bytes.
inline std::pair<std::uintptr_t, std::size_t> pages_of(std::uintptr_t address, std::size_t bytes) {
    const std::uintptr_t begin = address / kPage * kPage;
    return {begin, round_up(address + bytes - begin, kPage)};
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
    std::uint32_t allocated_at = 0, freed_at = 0;  // call sites; 0: not freed
    bool is_live() const { return bytes > 0 && freed_at == 0; }
};

// Allocations by address, including freed ones: no address is used twice.
class Allocations {
public:
    void add(std::uintptr_t address, std::size_t bytes, std::uint32_t site) {
        all_[address] = {address, bytes, site};
        ++live_;
        live_bytes_ += bytes;
    }
    // Returns the size; 0: not a live allocation.
    std::size_t remove(std::uintptr_t address, std::uint32_t site) {
        const auto found = all_.find(address);
        if (found == all_.end() || !found->second.is_live()) return 0;
        found->second.freed_at = site;
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
        if (found.bytes == 0) return "no allocation";
        const std::size_t from_begin = address - found.begin;
        return (from_begin < found.bytes ? "byte " + std::to_string(from_begin) + " of"
                                         : std::to_string(from_begin - found.bytes) + " bytes past the end of") +
               " an allocation of " + std::to_string(found.bytes) + (found.is_live() ? "" : ", which was freed");
    }
    std::size_t live() const { return live_; }
    std::size_t live_bytes() const { return live_bytes_; }

private:
    std::map<std::uintptr_t, Allocation> all_;
    std::size_t live_ = 0, live_bytes_ = 0;
};

// Allocates addresses of one of the two ranges. No address is used twice, so freed memory stays inaccessible. An
// allocation ends, rounded to its alignment, at the end of a page; the next page is inaccessible.
class Addresses {
public:
    Addresses(std::uintptr_t begin, std::size_t bytes) : next_(begin), end_(begin + bytes) {}
    void* take(std::size_t bytes, std::uint32_t site) {
        const std::size_t pages = round_up(bytes, kPage);
        if (bytes == 0 || next_ + pages + kPage > end_) return nullptr;
        const std::uintptr_t address = next_ + pages - round_up(bytes, kDeviceAlignment);
        next_ += pages + kPage;
        given_.add(address, bytes, site);
        return reinterpret_cast<void*>(address);
    }
    // Returns the size; 0: not a live allocation.
    std::size_t give_back(void* address, std::uint32_t site) {
        return given_.remove(reinterpret_cast<std::uintptr_t>(address), site);
    }
    const Allocations& given() const { return given_; }

private:
    std::uintptr_t next_;
    const std::uintptr_t end_;
    Allocations given_;
};

}  // namespace stand_in
