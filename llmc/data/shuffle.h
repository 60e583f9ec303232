// shuffle.h - a permutation of 0 .. size - 1 that is computed, not stored: no array, and any place of any epoch at once
//
// Numbers are written as left * right_base + right with both bases about sqrt(size). Rounds in turn add to one half a
// keyed hash of the other (a Feistel network), which is a bijection whatever the hash. It permutes left_base *
// right_base >= size numbers; a result past the end is permuted again until it falls inside (cycle walking), which one
// number in about sqrt(size) needs.
//
// Source    Luby, Rackoff 1988; Black, Rogaway 2002 (ciphers with arbitrary finite domains).
#pragma once
#include <array>
#include <cstdint>

namespace llmc {

class Permutation {
public:
    // The same for the same three numbers, on every machine. `stream` (an epoch) tells permutations of one seed apart.
    // Throws Error if size < 1.
    Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t stream);

    std::int64_t size() const { return std::int64_t(size_); }
    std::int64_t operator()(std::int64_t index) const;  // 0 <= index < size()

private:
    // Luby and Rackoff prove four enough for wide halves; twice as many, as halves may be narrow. 60 ns a number at
    // 10^7 (Zen 5).
    static constexpr int kRounds = 8;

    std::uint64_t size_, left_base_, right_base_;
    std::array<std::uint64_t, kRounds> keys_;
};

}  // namespace llmc
