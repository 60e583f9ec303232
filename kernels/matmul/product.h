// product.h - the three products of a linear layer: the key of each, and the forms in which a library with fused
// epilogues can compute it. Host code without a library
#pragma once
#include <compare>
#include <string>
#include <vector>

#include "kernels/device/types.h"
#include "kernels/matmul/matmul.h"

namespace kernels {

enum class Product { forward, backward_input, backward_weight };
const char* name_of(Product product);

struct ProductShape {
    Product product;
    DType dtype;
    int rows, in_channels, out_channels;
    bool biased;      // forward: a bias is added; backward_input: a bias gradient is summed
    bool with_gelu;
    bool accumulate;  // backward_weight: gradients are added to, not overwritten
    bool tf32 = false;
    bool residual = false;  // forward: the result is added to the residual stream, and normalized
    bool fp8 = false;       // of 8-bit floats; a forward or input gradient's result is bf16
    std::uintptr_t alignment = kTensorAlignment;  // of all tensors, in bytes: algorithms depend on it
    auto operator<=>(const ProductShape&) const = default;

    std::string call() const;     // for messages
    std::string problem() const;  // key of stored algorithms: unique to the shape
};

// The operations that the library fuses into the product; other kernels do the rest. Names, in tune files, too: bare,
// fused-gelu, fused-gelu-bias (the bias gradient), cudnn-gelu (by cuDNN instead), fused-residual.
struct ProductForm {
    bool gelu = false, bias_gradient = false, residual = false, cudnn = false;
    bool operator==(const ProductForm&) const = default;
};
std::string name_of(const ProductForm& form);
// In the order in which they are tried without timing: the most fused first and bare last. Only those that round
// differently, with a residual, with GELU and a bias gradient or by cuDNN, follow one that does not: they must be
// selected.
std::vector<ProductForm> forms_of(const ProductShape& shape);

}  // namespace kernels
