// simt_skip.h - SIMT_SKIP_BARRIER=FILE:LINE: every plain __syncthreads and __syncwarp on that line returns immediately,
// as if it were deleted. If no test then fails, either the barrier or a test is missing its purpose
// (dev/mutate/mutate_barriers.sh). FILE is the end of a path: "reduce.cuh:43".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/simt/simt_block.h"

namespace simt {

class SkippedBarrier {
public:
    // Parses the value of SIMT_SKIP_BARRIER; empty: none. Throws Error (Blame::input) if it is not FILE:LINE.
    explicit SkippedBarrier(std::string_view place);

    bool is(const Site& site) const { return line_ != 0 && site.where.line() == line_ && is_plain_and_in_file(site); }

    // From the environment, read at the first launch. If no thread has reached the line when the process ends, it
    // prints a message and exits with status 3: a misspelt line, or one that no test reaches, must not count as a
    // redundant barrier.
    static const SkippedBarrier& of_environment();

private:
    bool is_plain_and_in_file(const Site& site) const;

    std::string file_;
    std::uint_least32_t line_ = 0;
};

}  // namespace simt
