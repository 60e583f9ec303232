// shuffle_test.cpp - the computed function is a permutation, and all orders are equally likely
#include <cmath>
#include <map>
#include <vector>

#include "kernels/base/error.h"
#include "llmc/data/shuffle.h"
#include "test/support/catch.h"

using namespace llmc;

TEST_CASE("a permutation contains every number once and is uniform over seeds", "[shuffle]") {
    for (const int size : {1, 2, 3, 4, 5, 7, 16, 17, 99, 100, 101, 1000, 65537}) {
        CAPTURE(size);
        std::vector<bool> seen(static_cast<std::size_t>(size));
        const Permutation permutation(size, 5, 0);
        bool inside = true;
        for (int i = 0; i < size; ++i) {
            const std::int64_t x = permutation(i);
            inside = inside && x >= 0 && x < size && !seen[std::size_t(x)];
            if (!inside) break;
            seen[std::size_t(x)] = true;
        }
        CHECK(inside);
    }
    CHECK_THROWS_AS(Permutation(0, 5, 0), Error);
    const Permutation large((std::int64_t(1) << 62) + 12345, 5, 0);
    CHECK(large(large.size() - 1) < large.size());

    // All 24 orders of 4 are equally frequent over seeds and over epochs, and so are the distances between neighbours'
    // images in 101. Chi-square with n - 1 degrees of freedom has mean n - 1 and variance
    // 2 (n - 1); the bound is six standard deviations.
    const auto uniform = [](const std::map<std::int64_t, int>& counts, int cells, int draws) {
        const double expected = double(draws) / cells;
        double chi_square = (cells - double(counts.size())) * expected;
        for (const auto& [cell, count] : counts) chi_square += (count - expected) * (count - expected) / expected;
        CAPTURE(chi_square, cells);
        CHECK(chi_square < cells - 1 + 6 * std::sqrt(2.0 * (cells - 1)));
    };
    std::map<std::int64_t, int> orders_by_seed, orders_by_epoch, distances;
    constexpr int kDraws = 24000;
    for (int draw = 0; draw < kDraws; ++draw) {
        const Permutation by_seed(4, std::uint64_t(draw), 0), by_epoch(4, 1, std::uint64_t(draw)),
            many(101, std::uint64_t(draw), 0);
        ++orders_by_seed[by_seed(0) * 16 + by_seed(1) * 4 + by_seed(2)];
        ++orders_by_epoch[by_epoch(0) * 16 + by_epoch(1) * 4 + by_epoch(2)];
        ++distances[(many(51) - many(50) + 101) % 101];
    }
    uniform(orders_by_seed, 24, kDraws);
    uniform(orders_by_epoch, 24, kDraws);
    uniform(distances, 100, kDraws);
}
