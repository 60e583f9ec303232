// element_range.h - a range of the elements of an array, whatever their type
#pragma once
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

}  // namespace llmc
