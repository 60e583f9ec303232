// cut_off_guard.h - a mapped file that is cut off while it is read: zeros and a mark instead of the end of the process
//
// Touching a page of a mapping that its file no longer has raises SIGBUS in the thread that touches it. For ranges that
// are guarded, a handler puts zero pages in the place of that page and all after it, and marks the range; the reader
// asks for the mark after reading. Every other SIGBUS ends the process as it did. The handler runs on threads that read
// files, in code that keeps to its stack (run/control/interrupt.h says why no handler may run elsewhere).
#pragma once
#include <cstddef>

namespace llmc {

struct GuardedRange;

// Owner of the guard of one mapping, which must outlive it.
class CutOffGuard {
public:
    CutOffGuard() = default;
    // `address` as mmap gave it.
    CutOffGuard(const std::byte* address, std::size_t bytes);
    ~CutOffGuard();
    CutOffGuard(CutOffGuard&& other) noexcept : range_(other.range_) { other.range_ = nullptr; }
    CutOffGuard& operator=(CutOffGuard&& other) noexcept {
        GuardedRange* const mine = range_;
        range_ = other.range_;
        other.range_ = mine;
        return *this;
    }

    bool marked() const;  // a part of it was found missing and reads as zeros

private:
    GuardedRange* range_ = nullptr;
};

}  // namespace llmc
