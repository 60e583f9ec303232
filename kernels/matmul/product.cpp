// product.cpp - forms of products, and their keys for stored algorithms
#include "kernels/matmul/product.h"

namespace kernels {
namespace {

// Documented alignment of the leading dimension of the matrix that GELU_AUX writes and DGELU reads.
constexpr int kAuxiliaryMultiple = 8;
// In bytes, of a tensor in a graph of cuDNN's frontend, unless it is described otherwise.
constexpr std::uintptr_t kCudnnAlignment = 16;

}  // namespace

const char* name_of(Product product) {
    return product == Product::forward          ? "forward"
           : product == Product::backward_input ? "backward_input"
                                                : "backward_weight";
}

std::string ProductShape::call() const {
    const char* const type = fp8 ? " fp8" : dtype == DType::bf16 ? " bf16" : " fp32";
    return std::string("matmul ") + name_of(product) + type + ", rows " + std::to_string(rows) + ", in_channels " +
           std::to_string(in_channels) + ", out_channels " + std::to_string(out_channels);
}

std::string ProductShape::problem() const {
    return call() + (tf32 ? ", tf32" : "") + (biased ? ", bias" : "") + (with_gelu ? ", gelu" : "") +
           (residual ? ", residual" : "") + (accumulate ? ", added" : "") +
           (alignment < kTensorAlignment ? ", alignment " + std::to_string(alignment) : "");
}

std::string name_of(const ProductForm& form) {
    return form.cudnn           ? "cudnn-gelu"
           : form.bias_gradient ? "fused-gelu-bias"
           : form.gelu          ? "fused-gelu"
           : form.residual      ? "fused-residual"
                                : "bare";
}

std::vector<ProductForm> forms_of(const ProductShape& shape) {
    std::vector<ProductForm> forms;
    const int channels = shape.product == Product::forward ? shape.out_channels : shape.in_channels;
    // GELU in fp32 always uses kernels/gelu.h: the accuracy of a library's tanh is not documented.
    const bool gelu = shape.with_gelu && shape.dtype == DType::bf16 && channels % kAuxiliaryMultiple == 0;
    if (gelu) forms.push_back({.gelu = true});
    if (shape.product == Product::backward_input && gelu && shape.biased)
        forms.push_back({.gelu = true, .bias_gradient = true});
    forms.push_back({});
    if (gelu && shape.alignment >= kCudnnAlignment) forms.push_back({.gelu = true, .cudnn = true});
    if (shape.residual) forms.push_back({.residual = true});
    return forms;
}

}  // namespace kernels
