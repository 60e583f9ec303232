// refusal_cudnn_test.cpp - what a build with cuDNN does and says where cuDNN cannot run
#include "kernels/attention/attention.h"
#include "kernels/device/device.h"
#include "kernels/matmul/product_cudnn.h"
#include "test/support/support.h"

using namespace kernels;

TEST_CASE("if cuDNN cannot run, auto skips it and says why; requested by name it is refused",
          "[attention][attention_choice][one_order]") {
    if (device::count() > 0) test::skip("this machine has a GPU, on which cuDNN runs");
    const AttentionShape shape{2, 64, 2, 64};
    const Attention attention;
    const AttentionPlan& plan = attention.plan(DType::bf16, shape, true);
    CHECK(plan.method == AttentionMethod::flash);
    CHECK_THAT(plan.why_not_cudnn,
               test::StartsWith("cudnnCreate(&created) failed at ") && test::Contains("CUDNN_STATUS_"));
    CHECK_THAT(plan.text, test::StartsWith("flash (mma.sync), selected by auto; not cuDNN: cudnnCreate"));
    CHECK_THROWS_WITH(
        Attention({.method = AttentionMethod::cudnn}).plan(DType::bf16, shape, true),
        test::StartsWith(
            "--attention is \"cudnn\"; expected a method that supports this model and GPU; cuDNN's reason: "
            "cudnnCreate") &&
            test::EndsWith("use auto, flash or plain"));
}

TEST_CASE("where cuDNN cannot run, products have no algorithms by cuDNN", "[matmul][one_order]") {
    if (device::count() > 0) test::skip("this machine has a GPU, on which cuDNN runs");
    CudnnProduct cudnn;
    for (const Product product : {Product::forward, Product::backward_input}) {
        const ProductShape shape{product, DType::bf16, 64, 16, 32, true, true, false};
        for (int i = 0; i < 2; ++i) CHECK(cudnn.algorithms(shape).empty());
    }
}
