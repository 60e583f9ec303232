// matmul_test.cpp - the description of the library (results of products: operations/linear.cpp)
#include "kernels/matmul/matmul.h"
#include "test/support/support.h"

using namespace kernels;
using test::Contains;

TEST_CASE("Matmul::describe() names the library and its bf16 arithmetic", "[matmul]") {
    Matmul widened({.bf16 = Bf16Arithmetic::widen}), measured;
    if (widened.describe(DType::bf16).find("oneDNN") == std::string::npos) {
        CHECK_THAT(widened.describe(DType::bf16), Contains("cuBLASLt"));
        return;
    }
    CHECK_THAT(widened.describe(DType::bf16), Contains("bf16 widened to fp32 as requested"));
    CHECK_THAT(measured.describe(DType::bf16),
               Contains("bf16 multiplied natively (") || Contains("bf16 widened to fp32"));
}
