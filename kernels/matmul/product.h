// product.h - the three products of a linear layer: what tells two of them apart, in which forms a library that fuses
// can compute each. Host code without a library
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
    bool biased;      // forward: a bias is added; backward: a bias' gradient is summed
    bool with_gelu;
    bool accumulate;  // what backward gives is added to what is there
    bool tf32 = false;
    std::uintptr_t alignment = kTensorAlignment;  // of all tensors, in bytes: algorithms are chosen by it
    auto operator<=>(const ProductShape&) const = default;

    std::string call() const;     // for messages
    std::string problem() const;  // for choices: two shapes have the same only if they are the same
};

// What the library does beside the product; the rest is left to our own kernels.
struct ProductForm {
    bool gelu = false, bias_gradient = false;
    bool operator==(const ProductForm&) const = default;
};
std::string name_of(const ProductForm& form);
// In the order in which they are tried where no times are known: the most that can be fused first, bare last.
std::vector<ProductForm> forms_of(const ProductShape& shape);

// The four products that tell where the gradient of the bias of `pair` is best summed.
struct BiasPlaces {
    ProductShape input_with_bias, weight_without, input_without, weight_with_bias;
};
BiasPlaces bias_places(DType dtype, bool tf32, const GeluPair& pair);

}  // namespace kernels
