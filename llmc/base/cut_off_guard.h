// cut_off_guard.h - survives the truncation of a mapped file: missing pages read as zeros and are marked
//
// Accessing a mapped page that lies beyond the end of its file raises SIGBUS in the accessing thread. For guarded
// ranges, a handler maps zero pages over that page and all after it, and marks the range; the reader checks the mark
// after reading. Every other SIGBUS terminates the process as usual. The handler runs on threads that read files, in
// code that uses only its own stack (run/control/interrupt.h says why no handler may run elsewhere).
#pragma once
#include <cstddef>

namespace llmc {

struct GuardedRange;

// Owns the guard of one mapping. The mapping must outlive it.
class CutOffGuard {
public:
    CutOffGuard() = default;
    // `address` as returned by mmap.
    CutOffGuard(const std::byte* address, std::size_t bytes);
    ~CutOffGuard();
    CutOffGuard(CutOffGuard&& other) noexcept : range_(other.range_) { other.range_ = nullptr; }
    CutOffGuard& operator=(CutOffGuard&& other) noexcept {
        GuardedRange* const mine = range_;
        range_ = other.range_;
        other.range_ = mine;
        return *this;
    }

    bool marked() const;  // whether an access found a page missing; it reads as zeros now

private:
    GuardedRange* range_ = nullptr;
};

}  // namespace llmc
