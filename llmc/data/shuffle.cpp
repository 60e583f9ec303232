// shuffle.cpp - the Feistel network of a permutation: keys, rounds, and cycle walking
#include "llmc/data/shuffle.h"

#include <cmath>

#include "kernels/base/error.h"
#include "kernels/device/random.h"

namespace llmc {
namespace {

using kernels::SplitMix64;

// Adds to `half` a hash of the other half, modulo base. The high half of hash * base lies in [0, base) without a
// division.
std::uint64_t add_hash(std::uint64_t half, std::uint64_t other, std::uint64_t key, std::uint64_t base) {
    const std::uint64_t sum = half + std::uint64_t((unsigned __int128)(SplitMix64::mix(other ^ key)) * base >> 64);
    return sum < base ? sum : sum - base;
}

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t stream) : size_(std::uint64_t(size)) {
    require(size >= 1, "size of a permutation", size, "at least 1");
    left_base_ = std::uint64_t(std::sqrt(double(size)));
    if (left_base_ * left_base_ < size_) ++left_base_;
    right_base_ = ceil_div(size_, left_base_);

    SplitMix64 keys(SplitMix64(seed).next() ^ stream);
    for (std::uint64_t& key : keys_) key = keys.next();
}

std::int64_t Permutation::operator()(std::int64_t index) const {
    auto x = std::uint64_t(index);
    do {
        std::uint64_t left = x / right_base_, right = x % right_base_;
        for (int round = 0; round < kRounds; round += 2) {
            left = add_hash(left, right, keys_[round], left_base_);
            right = add_hash(right, left, keys_[round + 1], right_base_);
        }
        x = left * right_base_ + right;
    } while (x >= size_);
    return std::int64_t(x);
}

}  // namespace llmc
