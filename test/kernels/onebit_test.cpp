// onebit_test.cpp - padding, scales and the verdict of the mean at 1 bit per element (the other kernels:
// operations/onebit.cpp; whole exchanges: llmc/model/onebit_adam_ranks_test.cpp)
#include "kernels/onebit.h"

#include <bit>
#include <cmath>
#include <map>

#include "kernels/device/memory.h"
#include "test/support/support.h"

using namespace kernels;
using test::on_device;

namespace {

using Words = std::vector<std::uint32_t>;

// Three chunks of 10016 elements, each of two groups of more than one tile and the rest.
constexpr std::int64_t kGroup = 4128;
const OnebitLayout kLayout = onebit_layout(30000, 3, 32);

}  // namespace

TEST_CASE("a bucket is padded to equal chunks of the alignment", "[kernels][onebit]") {
    for (const auto& [size, ranks, padded] :
         {std::tuple(1, 1, 8), {17, 2, 32}, {768, 3, 768}, {768, 16, 768}, {124475904, 64, 124475904}})
        CHECK(onebit_layout(size, ranks, 8).padded() == padded);
    CHECK(onebit_layout(1, 3).padded() == 384);
}

TEST_CASE("a scale is the root mean square of the elements of its group that are not masked", "[kernels][onebit]") {
    const bool one = GENERATE(false, true), masked = GENERATE(false, true);
    CAPTURE(one, masked);
    Words active(masked ? std::size_t(kLayout.padded() / 32) : 0);
    for (std::size_t word = 0; word < active.size(); ++word)  // the second group is masked as a whole
        active[word] = word >= kGroup / 32 && word < 2 * kGroup / 32 ? 0 : std::uint32_t(word * 0x9e3779b9u);
    const OnebitPlan plan = onebit_plan(kLayout, kGroup, active);
    std::map<std::int64_t, std::pair<double, double>> sums;  // by word of the messages: squares and elements
    std::vector<double> partial;
    for (const OnebitTile& tile : plan.tiles) {
        double elements = 0;
        for (std::int64_t i = tile.first; i < tile.first + tile.size; ++i)
            elements += !masked || (active[std::size_t(i / 32)] >> i % 32 & 1) != 0;
        partial.push_back(elements == 0 ? 0 : 1.5 * double(partial.size() + 1));
        for (int chunk = 0; chunk < kLayout.ranks; ++chunk) {
            if (!one && chunk != tile.chunk) continue;
            auto& [squares, count] = sums[chunk * plan.layout.message_words() + (one ? 0 : tile.group)];
            squares += partial.back();
            count += elements;
        }
    }
    CHECK(sums.size() == (one ? 3 : 9));
    Words want(std::size_t(kLayout.ranks * plan.layout.message_words()), 7);  // the other words are not written
    for (const auto& [word, sum] : sums)
        want[std::size_t(word)] =
            std::bit_cast<std::uint32_t>(sum.second > 0 ? float(std::sqrt(sum.first / sum.second)) : 0.0f);
    const auto messages = on_device(Words(want.size(), 7));
    const auto groups = on_device(plan.groups);
    const auto device_partial = on_device(partial);
    onebit_scales({.layout = plan.layout, .groups = groups.span(), .partial = device_partial.span(),
                   .messages = messages.span(), .one = one}, nullptr);
    CHECK(messages.download(nullptr) == want);
}

TEST_CASE("any scale that is not finite clears the verdict, which buckets share", "[kernels][onebit]") {
    const float bad = GENERATE(1.0f, NAN, INFINITY, -INFINITY);
    const OnebitPlan plan = onebit_plan(kLayout, kGroup, {});
    const auto groups = on_device(plan.groups);
    for (const OnebitGroup& group : plan.groups) {
        CAPTURE(bad, group.chunk, group.index);
        Words words(std::size_t(kLayout.ranks * plan.layout.message_words()), std::bit_cast<std::uint32_t>(1.0f));
        words[std::size_t(group.chunk * plan.layout.message_words() + group.index)] = std::bit_cast<std::uint32_t>(bad);
        const auto replies = on_device(words);
        for (const std::int32_t before : {0, 1}) {
            const auto finite = on_device(std::vector{before});
            onebit_check_scales({.layout = plan.layout, .groups = groups.span(), .replies = replies.span(),
                                 .finite = finite.span()}, nullptr);
            CHECK(finite.download(nullptr)[0] == (std::isfinite(bad) ? before : 0));
        }
    }
}
