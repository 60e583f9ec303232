// simt_skip.h - SIMT_SKIP_BARRIER=FILE:LINE: every plain __syncthreads and __syncwarp there passes at once, as if the
// line were deleted. Whether a test notices tells what the barrier, or the test, is for (dev/mutate_barriers.sh). FILE
// is the end of a path: "reduce.cuh:43".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/simt/simt_block.h"

namespace simt {

class SkippedBarrier {
public:
    // From the value of SIMT_SKIP_BARRIER; empty: none. Throws Error (Blame::input) that says what was expected.
    explicit SkippedBarrier(std::string_view place);

    bool is(const Site& site) const { return line_ != 0 && site.where.line() == line_ && is_plain_and_in_file(site); }

    // The environment's, read at the first launch. If no thread has come to it when the process ends, it says so and
    // ends it with status 3: a place that is misspelt, or that no test reaches, is no barrier that nobody misses.
    static const SkippedBarrier& of_environment();

private:
    bool is_plain_and_in_file(const Site& site) const;

    std::string file_;
    std::uint_least32_t line_ = 0;
};

}  // namespace simt
