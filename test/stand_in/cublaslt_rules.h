// cublaslt_rules.h - descriptors of the stand-in for libcublasLt, and the rules by which it refuses calls
//
// Sources: "header" is cublasLt.h of CUDA 13, "guide" the cuBLAS guide's section of that name, "seen" the behaviour of
// the library of CUDA 13.1 without a GPU. Undocumented behaviour is marked.
#pragma once
#include <cublasLt.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <type_traits>

#include "test/stand_in/stand_in.h"

namespace stand_in::cublaslt {

inline constexpr std::uint32_t kMagic = 0x6e617473;
inline constexpr std::array kParts = {1, 2, 4};  // by algorithm id

// The objects behind the handles. Attributes have the types and defaults of the header.
struct Layout {
    cudaDataType type;
    std::uint64_t rows, columns;
    std::int64_t ld;
    std::int32_t batch = 1;
    std::int64_t stride = 0;  // between two matrices of a batch, in elements
    bool operator==(const Layout&) const = default;

    bool is_fp8() const { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
    std::size_t element_bytes() const { return is_fp8() ? 1 : type == CUDA_R_16BF ? 2 : 4; }
    std::size_t bytes() const {
        const std::uint64_t before = std::uint64_t(batch - 1) * std::uint64_t(stride);
        return (before + (columns - 1) * std::uint64_t(ld) + rows) * element_bytes();
    }
};
struct Description {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void* bias = nullptr;
    void* auxiliary = nullptr;
    std::int64_t auxiliary_ld = 0;
    const float *a_scale = nullptr, *b_scale = nullptr;  // in device memory
    std::int8_t fast_accumulation = 0;
};
struct Preference {
    std::uint64_t max_workspace_bytes = 0;
    std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    std::uint32_t alignment = 256;  // of A, B, C and D in bytes
};

// The bytes of an algorithm, without uninitialized padding, so that equal algorithms have equal bytes.
struct Algorithm {
    std::uint32_t magic = kMagic;
    std::int32_t id = 0;
    std::int32_t parts = 1;  // of split-k
    std::uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    std::uint32_t alignment = Preference().alignment;  // promised at selection
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
static_assert(std::has_unique_object_representations_v<Algorithm>);

struct Epilogue {
    bool adds_bias = false, gelu = false, gelu_gradient = false, sums = false;  // sums: the bias gradient
    bool has_bias() const { return adds_bias || sums; }
    bool has_auxiliary() const { return gelu || gelu_gradient; }
};

inline std::optional<Epilogue> find_epilogue(std::uint32_t epilogue) {
    switch (epilogue) {
        case CUBLASLT_EPILOGUE_DEFAULT: return Epilogue{};
        case CUBLASLT_EPILOGUE_BIAS: return Epilogue{.adds_bias = true};
        case CUBLASLT_EPILOGUE_GELU_AUX: return Epilogue{.gelu = true};
        case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return Epilogue{.adds_bias = true, .gelu = true};
        case CUBLASLT_EPILOGUE_DGELU: return Epilogue{.gelu_gradient = true};
        case CUBLASLT_EPILOGUE_DGELU_BGRAD: return Epilogue{.gelu_gradient = true, .sums = true};
        default: return {};
    }
}

// One product: the payload of its task.
struct Product {
    Description description;
    Layout a, b, d;  // C has the layout of D
    Algorithm algorithm{};
    const void *a_data = nullptr, *b_data = nullptr, *c_data = nullptr;
    void* d_data = nullptr;
    float alpha = 1, beta = 0;
    float* workspace = nullptr;

    std::uint64_t m() const { return d.rows; }
    std::uint64_t n() const { return d.columns; }
    std::uint64_t k() const { return description.transpose_a == CUBLAS_OP_N ? a.columns : a.rows; }
    Epilogue epilogue() const { return *find_epilogue(description.epilogue); }
    Layout auxiliary() const { return {d.type, m(), n(), description.auxiliary_ld}; }
    // Header, CUBLASLT_EPILOGUE_BIAS: as long as D has rows. Its type is D's: guide, cublasLtMatmul; header,
    // CUBLASLT_MATMUL_DESC_BIAS_POINTER. The length for DGELU_BGRAD is not documented.
    std::size_t bias_bytes() const { return m() * d.element_bytes(); }
    // Header, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: partial sums are in the workspace, in the compute type. The
    // number of bytes is not documented.
    std::size_t workspace_bytes(const Algorithm& chosen) const {
        return chosen.parts > 1 ? m() * n() * sizeof(float) * std::size_t(chosen.parts) * std::size_t(d.batch) : 0;
    }
};

// Computes it, in the device process: cublaslt_product.cpp.
bool compute(std::byte* payload);

// ---- the rules

// Guide, cublasLtMatmul, FP8 kernels: compute type 32F; A transposed and B not, on Hopper; e4m3 with e4m3 or e5m2, but
// not e5m2 with itself; results bf16 or fp32; dimensions of 16 bytes. Of the result's columns that is not required: the
// library's log says so of M and K only, and PyTorch has required no more since its pull request 108308.
inline bool fp8_supported(const Product& product) {
    const Description& described = product.description;
    return described.compute == CUBLAS_COMPUTE_32F && described.transpose_a == CUBLAS_OP_T &&
           described.transpose_b == CUBLAS_OP_N && product.b.is_fp8() &&
           (product.a.type == CUDA_R_8F_E4M3 || product.b.type == CUDA_R_8F_E4M3) &&
           (product.d.type == CUDA_R_16BF || product.d.type == CUDA_R_32F) && product.m() % 16 == 0 &&
           product.k() % 16 == 0 && described.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
}

// Guide, cublasLtMatmul, types supported: scale type fp32; with compute type 32F bf16 matrices give bf16 or fp32, fp32
// ones fp32; 32F_FAST_TF32 has fp32 inputs and results.
inline bool types_supported(const Product& product) {
    const auto compute = product.description.compute;
    const cudaDataType in = product.a.type, out = product.d.type;
    if (product.description.scale != CUDA_R_32F || (product.b.type != in && !product.a.is_fp8())) return false;
    if (product.a.is_fp8()) return fp8_supported(product);
    if (compute == CUBLAS_COMPUTE_32F && in == CUDA_R_16BF) return out == CUDA_R_16BF || out == CUDA_R_32F;
    return (compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_FAST_TF32) && in == CUDA_R_32F &&
           out == CUDA_R_32F;
}

// Header, CUBLASLT_MATRIX_LAYOUT_LD: large enough that columns do not overlap. Empty matrices are not documented; here
// they are refused.
inline bool valid(const Layout& layout) {
    return layout.rows > 0 && layout.columns > 0 && layout.ld >= std::int64_t(layout.rows) && layout.batch > 0;
}

inline bool sizes_fit(const Product& product) {
    const Layout &a = product.a, &b = product.b, &d = product.d;
    const bool plain_a = product.description.transpose_a == CUBLAS_OP_N;
    const bool plain_b = product.description.transpose_b == CUBLAS_OP_N;
    return valid(a) && valid(b) && valid(d) && (plain_a ? a.rows : a.columns) == d.rows &&
           (plain_b ? b.columns : b.rows) == d.columns && (plain_b ? b.rows : b.columns) == product.k() &&
           a.batch == d.batch && b.batch == d.batch;  // Header, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: of all the same
}

inline bool is_transpose(std::int32_t value) { return value == CUBLAS_OP_N || value == CUBLAS_OP_T; }

inline std::uint32_t alignment_of(const void* address) {
    return 1u << std::countr_zero(reinterpret_cast<std::uintptr_t>(address) | 256);
}

// Sets `product` from the handles, and checks that it is supported.
inline cublasStatus_t find_product(Product& product, cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                   cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                   cublasLtMatrixLayout_t d) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    // Guide, cublasLtMatmul: INVALID_VALUE if parameters are in conflict or impossible; NOT_SUPPORTED if the device
    // does not support the operation. Another unexpected NULL is an invalid access here.
    if (c != d) stop("the stand-in for cuBLASLt supports C only in the layout of D");
    const auto layout = [](cublasLtMatrixLayout_t from) { return *reinterpret_cast<const Layout*>(from); };
    product = {*reinterpret_cast<const Description*>(description), layout(a), layout(b), layout(d)};
    const Description& described = product.description;
    if (!is_transpose(described.transpose_a) || !is_transpose(described.transpose_b) || !sizes_fit(product))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!types_supported(product)) return CUBLAS_STATUS_NOT_SUPPORTED;
    const auto epilogue = find_epilogue(described.epilogue);
    // Batches with epilogues are documented for some only; here for none.
    if (!epilogue || (product.d.batch > 1 && described.epilogue != CUBLASLT_EPILOGUE_DEFAULT))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (epilogue->has_auxiliary()) {
        // Header, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: for GELU a multiple of 8, and no less than D's rows.
        if (described.auxiliary_ld % 8 != 0 || described.auxiliary_ld < std::int64_t(product.m()))
            return CUBLAS_STATUS_INVALID_VALUE;
        // 16 bytes are not documented. Header, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: says only that algorithms
        // depend on the alignment of the address.
        if (alignment_of(described.auxiliary) < 16) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
}

// The epilogues with split-k are not documented; here none that sums.
inline bool computes(const Algorithm& algorithm, const Product& product) {
    const bool split = algorithm.parts > 1, reduces = algorithm.reduction != CUBLASLT_REDUCTION_SCHEME_NONE;
    if (split != reduces || (algorithm.id != 1 && algorithm.parts != kParts[std::size_t(algorithm.id)])) return false;
    return !split || (product.k() >= std::uint64_t(algorithm.parts) && !product.epilogue().sums);
}

// False if these are not the bytes of an algorithm.
inline bool read(Algorithm& algorithm, const cublasLtMatmulAlgo_t* from) {
    std::memcpy(static_cast<void*>(&algorithm), from, sizeof algorithm);
    return algorithm.magic == kMagic && algorithm.id >= 0 && std::size_t(algorithm.id) < kParts.size();
}

// Header, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES (B, C, D): an algorithm may need the alignment promised at its
// selection.
inline bool aligned_as_promised(const Product& product) {
    const auto aligned = [&](const void* address) { return alignment_of(address) >= product.algorithm.alignment; };
    return aligned(product.a_data) && aligned(product.b_data) && aligned(product.c_data) && aligned(product.d_data);
}

}  // namespace stand_in::cublaslt
