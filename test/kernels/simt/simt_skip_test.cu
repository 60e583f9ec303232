// simt_skip_test.cu - SIMT_SKIP_BARRIER skips the barriers of exactly one line, and reports a line without barriers
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/simt/simt.h"
#include "kernels/simt/simt_skip.h"
#include "test/kernels/simt/launch_support.h"
#include "test/support/catch.h"
#include "test/support/child.h"

namespace {

using test::Contains;

constexpr int kBlockLine = NEXT_LINE + 4, kWarpLine = kBlockLine + 2, kShuffleLine = kWarpLine + 3;
__global__ void hands_on(int* out) {
    SIMT_SHARED(int, line, [3][64]);
    const int i = threadIdx.x;
    line[0][i] = i;
    __syncthreads();
    line[1][i] = line[0][63 - i];
    __syncwarp();
    line[2][i] = line[1][i ^ 31];
    __syncthreads();
    out[i] = __shfl_xor_sync(~0u, line[2][i ^ 33], 1);
}

TEST_CASE("a kernel of a process in which a barrier is skipped", "[.simt_skip_child]") {
    std::vector<int> out(64), want(64);
    for (int i = 0; i < 64; ++i) want[i] = 63 - (i ^ 32 ^ 31);
    const std::string error = test::error_of_launch<hands_on>({.grid = 1, .block = 64}, out.data());
    std::printf("result is %s %s\n", error.empty() && out == want ? "right" : "wrong", error.c_str());
}

TEST_CASE("SIMT_SKIP_BARRIER skips one barrier, and reports a line without one", "[simt][one_order]") {
    const auto skipping = [](const std::string& file, int line) {
        return test::output_of_child("SIMT_SKIP_BARRIER=" + file + ":" + std::to_string(line), "[.simt_skip_child]");
    };
    CHECK_THAT(test::output_of_child("SIMT_SKIP_BARRIER=", "[.simt_skip_child]"),
               Contains("result is right") && Contains("status 0"));
    for (int line : {kBlockLine, kWarpLine})
        for (const char* file : {"simt_skip_test.cu", "test/kernels/simt/simt_skip_test.cu"})
            CHECK_THAT(skipping(file, line), Contains("result is wrong") && Contains("status 0"));
    const auto nowhere = [](const std::string& output, const std::string& place) {
        CHECK_THAT(output, Contains("result is right") && Contains("status 3"));
        CHECK_THAT(output, Contains("SIMT_SKIP_BARRIER is \"" + place +
                                    "\"; expected the FILE:LINE of a plain __syncthreads or __syncwarp that a "));
    };
    const auto at = [](const std::string& file, int line) { return file + ":" + std::to_string(line); };
    nowhere(skipping("simt_skip_test.cu", kBlockLine + 1), at("simt_skip_test.cu", kBlockLine + 1));
    // a shuffle is no barrier
    nowhere(skipping("simt_skip_test.cu", kShuffleLine), at("simt_skip_test.cu", kShuffleLine));
    // FILE must be whole components at the end of a path
    nowhere(skipping("skip_test.cu", kBlockLine), at("skip_test.cu", kBlockLine));
}

TEST_CASE("SIMT_SKIP_BARRIER rejects values other than FILE:LINE", "[simt][one_order]") {
    CHECK_NOTHROW(simt::SkippedBarrier("a.cu:1"));
    for (const char* place : {"a.cu", "a.cu:", ":7", "a.cu:0", "a.cu:-1", "a.cu:7x", "7"})
        CHECK_THROWS_WITH(simt::SkippedBarrier(place), "SIMT_SKIP_BARRIER is \"" + std::string(place) +
                                                           "\"; expected FILE:LINE of a __syncthreads or __syncwarp");
}

}  // namespace
