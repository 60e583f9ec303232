// element_range.h - a range of the elements of an array, whatever their type
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

namespace llmc {

struct ElementRange {
    std::int64_t first = 0, size = 0;

    std::int64_t end() const { return first + size; }
    template <class T> std::span<T> of(std::span<T> array) const {
        return array.subspan(std::size_t(first), std::size_t(size));
    }
};

// The elements that both have; `size` 0 or less: none.
inline ElementRange common(const ElementRange& a, const ElementRange& b) {
    const std::int64_t first = std::max(a.first, b.first);
    return {.first = first, .size = std::min(a.end(), b.end()) - first};
}

}  // namespace llmc
