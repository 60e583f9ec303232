// addresses.h - which addresses of common memory are in use
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

// The pages that an allocation lies in: the begin of the first, and the bytes of all.
inline std::pair<std::uintptr_t, std::size_t> pages_of(std::uintptr_t address, std::size_t bytes) {
    const std::uintptr_t begin = address / kPage * kPage;
    return {begin, round_up(address + bytes - begin, kPage)};
}

// Of an allocation's pages, in this process.
inline void protect(std::uintptr_t address, std::size_t bytes, int protection) {
    const auto [begin, length] = pages_of(address, bytes);
    if (mprotect(reinterpret_cast<void*>(begin), length, protection) != 0)
        stop(std::string("no such memory: ") + std::strerror(errno));
}

// Allocations by address.
class Allocations {
public:
    void add(std::uintptr_t address, std::size_t bytes) { all_[address] = bytes; }
    // Its size; 0: it is none.
    std::size_t remove(std::uintptr_t address) {
        const auto found = all_.find(address);
        if (found == all_.end()) return 0;
        const std::size_t bytes = found->second;
        all_.erase(found);
        return bytes;
    }
    // The last one that begins at the address or before: begin and size; 0 and 0: there is none.
    std::pair<std::uintptr_t, std::size_t> at_or_before(std::uintptr_t address) const {
        const auto above = all_.upper_bound(address);
        if (above == all_.begin()) return {};
        return *std::prev(above);
    }
    // What an address belongs to, in words.
    std::string describe(std::uintptr_t address) const {
        const auto [begin, bytes] = at_or_before(address);
        if (bytes == 0) return "no allocation";
        const std::size_t from_begin = address - begin;
        return (from_begin < bytes ? "byte " + std::to_string(from_begin) + " of"
                                   : std::to_string(from_begin - bytes) + " bytes behind") +
               " an allocation of " + std::to_string(bytes);
    }
    std::size_t count() const { return all_.size(); }

private:
    std::map<std::uintptr_t, std::size_t> all_;
};

// Addresses of one of the two ranges, none of them given twice: what was freed stays out of reach for good. An
// allocation ends, rounded to its alignment, where a page does, before one that nobody may touch.
class Addresses {
public:
    Addresses(std::uintptr_t begin, std::size_t bytes) : next_(begin), end_(begin + bytes) {}
    void* take(std::size_t bytes) {
        const std::size_t pages = round_up(bytes, kPage);
        if (bytes == 0 || next_ + pages + kPage > end_) return nullptr;
        const std::uintptr_t address = next_ + pages - round_up(bytes, kDeviceAlignment);
        next_ += pages + kPage;
        live_.add(address, bytes);
        live_bytes_ += bytes;
        return reinterpret_cast<void*>(address);
    }
    // Its size; 0: it is no allocation's.
    std::size_t give_back(void* address) {
        const std::size_t bytes = live_.remove(reinterpret_cast<std::uintptr_t>(address));
        live_bytes_ -= bytes;
        return bytes;
    }
    const Allocations& live() const { return live_; }
    std::size_t live_bytes() const { return live_bytes_; }

private:
    std::uintptr_t next_;
    const std::uintptr_t end_;
    Allocations live_;
    std::size_t live_bytes_ = 0;
};

}  // namespace stand_in
