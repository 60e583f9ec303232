// shuffle.h - a permutation of 0 .. size - 1 that is computed, not stored: needs no array and gives random access to
// any position of any epoch
//
// A number is written as left * right_base + right, with both bases about sqrt(size). Rounds alternately add to one
// half a keyed hash of the other (a Feistel network), which is a bijection for any hash. It permutes left_base *
// right_base >= size numbers; a result >= size is permuted again until it is smaller (cycle walking), which about one
// number in sqrt(size) needs.
//
// Source    Luby, Rackoff 1988; Black, Rogaway 2002 (ciphers with arbitrary finite domains).
#pragma once
#include <array>
#include <cstdint>

namespace llmc {

class Permutation {
public:
    // Depends only on the three numbers, on every machine. `stream` (the epoch) selects one of a seed's permutations.
    // Throws Error if size < 1.
    Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t stream);

    std::int64_t size() const { return std::int64_t(size_); }
    std::int64_t operator()(std::int64_t index) const;  // 0 <= index < size()

private:
    // Luby and Rackoff prove that four are enough for wide halves; here twice as many, because halves may be narrow.
    // 60 ns per number at size 10^7 (Zen 5).
    static constexpr int kRounds = 8;

    std::uint64_t size_, left_base_, right_base_;
    std::array<std::uint64_t, kRounds> keys_;
};

}  // namespace llmc
