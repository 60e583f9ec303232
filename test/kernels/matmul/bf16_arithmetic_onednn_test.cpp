// bf16_arithmetic_onednn_test.cpp - how oneDNN multiplies bf16 with the processor's instruction sets
#include <cstdio>
#include <cstdlib>

#include "kernels/matmul/matmul.h"
#include "kernels/tuning/tuned_algorithms.h"
#include "test/support/catch.h"

using kernels::Bf16Arithmetic;
using kernels::DType;
using kernels::Matmul;

namespace {
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
}  // namespace

#if defined(__x86_64__)
// scripts/test.sh runs this with different limits on the library's instruction set, which it reads only once.
TEST_CASE("bf16 is multiplied natively if that is faster, and widened if it would be emulated", "[matmul]") {
    const std::string said = Matmul().describe(DType::bf16),
                      asked = Matmul({.bf16 = Bf16Arithmetic::native}).describe(DType::bf16);
    CAPTURE(said, asked);
    const char* cap = std::getenv("ONEDNN_MAX_CPU_ISA");
    const auto uses = [&](const char* instructions) {
        return contains(said, std::string(", ") + instructions + "; bf16 ");
    };
    const std::string most = cap ? cap : "";
    const bool has_most = most == "AVX512_CORE"        ? __builtin_cpu_supports("avx512dq")
                          : most == "AVX512_CORE_BF16" ? __builtin_cpu_supports("avx512bf16")
                                                       : __builtin_cpu_supports("avx2");
    if (has_most && most == "AVX2") CHECK(uses("AVX2"));
    if (has_most && most == "AVX512_CORE") CHECK(uses("AVX-512"));
    if (has_most && most == "AVX512_CORE_BF16") CHECK(uses("AVX-512 BF16"));
    if (uses("AVX-512 BF16")) {  // depends on the processor: compare with the printed times
        double native = 0, widened = 0;
        const std::string figures = said.substr(said.find("(one thread: "));
        REQUIRE(std::sscanf(figures.c_str(), "(one thread: %lf GFLOP/s natively, %lf widened)", &native,
                            &widened) == 2);
        const bool chose_native = contains(said, "; bf16 multiplied natively (");
        CHECK(chose_native == !contains(said, "; bf16 widened to fp32 ("));
        if (native > widened) CHECK(chose_native);
        if (widened > 1.3 * native) CHECK(!chose_native);  // in between, noise may decide
    } else if (uses("AMX")) CHECK(contains(said, "; bf16 multiplied natively (one thread: "));
    else if (uses("AVX-512") || uses("AVX-512 VNNI"))
        CHECK(contains(said, "; bf16 widened to fp32 (one thread: "));
    else CHECK(contains(said, "; bf16 widened to fp32, because oneDNN has no bf16 products for this processor"));
    const bool possible = !contains(said, "has no bf16 products");
    CHECK(contains(asked, possible ? "; bf16 multiplied natively as requested"
                                          : "; bf16 widened to fp32, because oneDNN has no bf16 products"));
    CHECK(contains(Matmul({.bf16 = Bf16Arithmetic::widen}).describe(DType::bf16), "bf16 widened to fp32 as requested"));
    if (cap && !has_most) test::skip("this processor has no " + most);
}
#else
TEST_CASE("on another architecture no instruction set of x86-64 is named, nor decides on bf16", "[matmul]") {
    kernels::TunedAlgorithms tuned;
    tuned.timing = false;
    const std::string said = Matmul({.tuned = &tuned}).describe(DType::bf16);
    CAPTURE(said);
    CHECK_FALSE(contains(said, "AVX"));
    CHECK_FALSE(contains(said, "AMX"));
    CHECK(contains(said, "; bf16 widened to fp32"));
}
#endif
