// product_cudnn_test.cpp - products with GELU in a build with cuDNN, where cuDNN cannot run
#include "kernels/device/device.h"
#include "kernels/matmul/product_cudnn.h"
#include "test/support/support.h"

using namespace kernels;

TEST_CASE("where cuDNN cannot run, products have no algorithms by cuDNN", "[matmul][one_order]") {
    if (device::count() > 0) test::skip("this machine has a GPU, on which cuDNN runs");
    CudnnProduct cudnn;
    for (const Product product : {Product::forward, Product::backward_input}) {
        const ProductShape shape{product, DType::bf16, 64, 16, 32, true, true, false};
        for (int i = 0; i < 2; ++i) CHECK(cudnn.algorithms(shape).empty());
    }
}
