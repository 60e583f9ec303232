// cublaslt_product.cpp - a product of the stand-in for libcublasLt, computed in plain loops in the device process
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "test/stand_in/cublaslt_rules.h"

namespace stand_in::cublaslt {
namespace {

float value_at(const void* data, cudaDataType type, std::size_t index) {
    const auto fp8 = [&](__nv_fp8_interpretation_t kind) {
        const __half_raw half = __nv_cvt_fp8_to_halfraw(static_cast<const __nv_fp8_storage_t*>(data)[index], kind);
        return __half2float(half);
    };
    if (type == CUDA_R_8F_E4M3) return fp8(__NV_E4M3);
    if (type == CUDA_R_8F_E5M2) return fp8(__NV_E5M2);
    return type == CUDA_R_16BF ? __bfloat162float(static_cast<const __nv_bfloat16*>(data)[index])
                               : static_cast<const float*>(data)[index];
}
// The rounding of results is not documented; here to nearest, ties to even.
void put(void* data, cudaDataType type, std::size_t index, float value) {
    if (type == CUDA_R_16BF) static_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16_rn(value);
    else static_cast<float*>(data)[index] = value;
}

// op(matrix), column-major and dense.
std::vector<float> load(const void* data, const Layout& layout, bool transposed) {
    std::vector<float> values(layout.rows * layout.columns);
    for (std::size_t column = 0; column < layout.columns; ++column)
        for (std::size_t row = 0; row < layout.rows; ++row)
            values[transposed ? row * layout.columns + column : column * layout.rows + row] =
                value_at(data, layout.type, column * std::size_t(layout.ld) + row);
    return values;
}

// Products of a (m, k) and b (k, n) over first..last of k, added in that order.
void multiply(const float* a, const float* b, float* sums, std::size_t m, std::size_t n, std::size_t k,
              std::size_t first, std::size_t last) {
    std::fill_n(sums, m * n, 0.0f);
    for (std::size_t column = 0; column < n; ++column)
        for (std::size_t step = first; step < last; ++step)
            for (std::size_t row = 0; row < m; ++row)
                sums[column * m + row] += a[step * m + row] * b[column * k + step];
}

// GELU in its tanh form. The library's form is not documented.
constexpr float kSlope = 0.7978845608f, kCube = 0.044715f;  // sqrt(2 / pi)
float gelu(float x) { return 0.5f * x * (1 + std::tanh(kSlope * (x + kCube * x * x * x))); }
float gelu_slope(float x) {
    const float t = std::tanh(kSlope * (x + kCube * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kSlope * (1 + 3 * kCube * x * x);
}

}  // namespace

static bool compute(const Product& product);

bool compute(std::byte* payload) {
    Product product;
    std::memcpy(static_cast<void*>(&product), payload, sizeof product);
    const auto advance = [](const void*& data, const Layout& layout) {
        data = static_cast<const std::byte*>(data) + std::size_t(layout.stride) * layout.element_bytes();
    };
    for (std::int32_t i = 0; i < product.d.batch; ++i) {
        if (!compute(product)) return false;
        advance(product.a_data, product.a);
        advance(product.b_data, product.b);
        if (product.c_data) advance(product.c_data, product.d);
        const void* d = product.d_data;
        advance(d, product.d);
        product.d_data = const_cast<void*>(d);
    }
    return true;
}

bool compute(const Product& product) {
    const Description& description = product.description;
    const Epilogue epilogue = product.epilogue();
    const std::size_t m = product.m(), n = product.n(), k = product.k();
    const auto parts = std::size_t(product.algorithm.parts);
    const cudaDataType type = product.d.type;

    const std::vector<float> a = load(product.a_data, product.a, description.transpose_a != CUBLAS_OP_N);
    const std::vector<float> b = load(product.b_data, product.b, description.transpose_b != CUBLAS_OP_N);
    std::vector<float> sums(m);
    std::vector<float> results(m * n);
    if (parts == 1) multiply(a.data(), b.data(), results.data(), m, n, k, 0, k);
    else
        for (std::size_t part = 0; part < parts; ++part) {
            float* const partial = product.workspace + part * m * n;
            multiply(a.data(), b.data(), partial, m, n, k, k * part / parts, k * (part + 1) / parts);
            for (std::size_t i = 0; i < m * n; ++i) results[i] += partial[i];
        }

    const float scale = (description.a_scale ? *description.a_scale : 1) *
                        (description.b_scale ? *description.b_scale : 1) * product.alpha;
    for (std::size_t column = 0; column < n; ++column)
        for (std::size_t row = 0; row < m; ++row) {
            float value = scale * results[column * m + row];
            if (product.beta != 0)
                value += product.beta * value_at(product.c_data, type, column * std::size_t(product.d.ld) + row);
            // Header, CUBLASLT_EPILOGUE_BIAS: a value for each row, for all columns, before other operations.
            if (epilogue.adds_bias) value += value_at(description.bias, type, row);
            const std::size_t at = column * std::size_t(description.auxiliary_ld) + row;
            // Header, CUBLASLT_EPILOGUE_GELU_AUX: stores GELU's input. Not documented: GELU is applied to the
            // unrounded input.
            if (epilogue.gelu) {
                put(description.auxiliary, type, at, value);
                value = gelu(value);
            }
            // Header, CUBLASLT_EPILOGUE_DGELU: times GELU's slope at its input.
            if (epilogue.gelu_gradient) value *= gelu_slope(value_at(description.auxiliary, type, at));
            // Header, CUBLASLT_EPILOGUE_DGELU_BGRAD: stores the bias gradient. That it is of unrounded D is not
            // documented.
            if (epilogue.sums) sums[row] += value;
            put(product.d_data, type, column * std::size_t(product.d.ld) + row, value);
        }
    if (epilogue.sums)
        for (std::size_t i = 0; i < sums.size(); ++i) put(description.bias, type, i, sums[i]);
    return true;
}

}  // namespace stand_in::cublaslt
