// cublaslt.cpp - a stand-in for libcublasLt: the functions that the program calls, in the host process
//
// Three algorithms: 0 adds along k in one sequence, 1 and 2 split k into 2 (1 also more) and 4 parts: last bits differ.
#include <cublasLt.h>

#include <cstring>
#include <string>
#include <vector>

#include "test/stand_in/cublaslt_rules.h"

struct cublasLtContext {};

namespace {

using namespace stand_in::cublaslt;

template <class Object, class Handle>
cublasStatus_t create(Handle* handle, const Object& object) {
    *handle = reinterpret_cast<Handle>(new Object(object));
    return CUBLAS_STATUS_SUCCESS;
}
template <class Object>
cublasStatus_t destroy(const char* function, void* handle) {
    const bool fails = stand_in::failure_injected(function);  // frees the handle in any case
    delete static_cast<Object*>(handle);  // seen: NULL is not an error
    return fails ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

// Header, cublasLtMatmulDescSetAttribute: no value, or not of the attribute's size, is INVALID_VALUE. Seen: values are
// not checked here.
template <class Value>
cublasStatus_t set(Value& attribute, const void* value, std::size_t bytes) {
    if (!value || bytes != sizeof attribute) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&attribute, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

// On the device's clock: the last is the fastest, not the first that the heuristic returns; any other number of parts
// is slow.
double seconds_of(const Algorithm& algorithm) {
    const bool is_listed = algorithm.parts == kParts[std::size_t(algorithm.id)];
    return is_listed ? (5 - algorithm.id) * stand_in::kMicrosecond : 1;
}

void fill(cublasLtMatmulHeuristicResult_t& result, const Algorithm& algorithm, const Product& product) {
    result.workspaceSize = product.workspace_bytes(algorithm);
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1.0f;
}

}  // namespace

extern "C" {

const char* cublasLtGetStatusName(cublasStatus_t status) {
    thread_local std::string name;
    name = "cublasStatus_t " + std::to_string(int(status));
    return name.c_str();
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "an error of the stand-in for cuBLASLt"; }
std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    STAND_IN_MAY_FAIL(CUBLAS_STATUS_NOT_INITIALIZED);
    return create(handle, cublasLtContext{});
}
// Guide: frees the handle's resources, after its last use. Here it does not synchronize: no code may rely on that.
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    return destroy<cublasLtContext>(__func__, handle);
}

// Seen: values are not checked here.
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t ld) {
    STAND_IN_MAY_FAIL(CUBLAS_STATUS_ALLOC_FAILED);
    return create(handle, Layout{type, rows, columns, ld});
}
// Header: see set(). Attributes that the program does not set are refused like unknown ones.
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
    STAND_IN_MAY_FAIL(CUBLAS_STATUS_INVALID_VALUE);
    auto& layout = *reinterpret_cast<Layout*>(handle);
    switch (attribute) {
        case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return set(layout.batch, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return set(layout.stride, value, bytes);
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}
// That enqueued products no longer need a destroyed description is not documented, but holds here, as below.
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
    return destroy<Layout>(__func__, handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    STAND_IN_MAY_FAIL(CUBLAS_STATUS_ALLOC_FAILED);
    return create(handle, Description{.compute = compute, .scale = scale});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
    return destroy<Description>(__func__, handle);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
    STAND_IN_MAY_FAIL(CUBLAS_STATUS_INVALID_VALUE);
    auto& description = *reinterpret_cast<Description*>(handle);
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_TRANSA: return set(description.transpose_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB: return set(description.transpose_b, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(description.epilogue, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(description.bias, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(description.auxiliary, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set(description.auxiliary_ld, value, bytes);
        case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return set(description.a_scale, value, bytes);
        case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return set(description.b_scale, value, bytes);
        case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return set(description.fast_accumulation, value, bytes);
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
    STAND_IN_MAY_FAIL(CUBLAS_STATUS_ALLOC_FAILED);
    return create(handle, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
    return destroy<Preference>(__func__, handle);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
    STAND_IN_MAY_FAIL(CUBLAS_STATUS_INVALID_VALUE);
    auto& preference = *reinterpret_cast<Preference*>(handle);
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(preference.max_workspace_bytes, value, bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(preference.reductions, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:  // the program sets all to the same
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return set(preference.alignment, value, bytes);
        default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

// Guide: algorithms that compute the product within the preferences, at most as many as requested.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference_handle, int most,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
    STAND_IN_MAY_FAIL(CUBLAS_STATUS_INTERNAL_ERROR);
    // Header: INVALID_VALUE if no algorithm is requested.
    if (most <= 0) return CUBLAS_STATUS_INVALID_VALUE;
    *found = 0;
    Product product;
    const cublasStatus_t status = find_product(product, handle, description, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const auto& preference = *reinterpret_cast<const Preference*>(preference_handle);
    // Header, CUBLASLT_REDUCTION_SCHEME_INPLACE: parts are added to the output one after the other. The order is not
    // documented, so results need not be reproducible.
    if (preference.reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE)
        stand_in::stop("cublasLtMatmulAlgoGetHeuristic may return algorithms that add in place, in any order");
    // Header: in the order of the estimated time, which is not that of seconds_of(): estimates err.
    for (std::int32_t id = 0; id < std::int32_t(kParts.size()) && *found < most; ++id) {
        const std::int32_t parts = kParts[std::size_t(id)];
        const std::uint32_t reduction =
            parts > 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
        const Algorithm algorithm{.id = id, .parts = parts, .reduction = reduction,
                                  .alignment = preference.alignment};
        // Header, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, _REDUCTION_SCHEME_MASK: leave algorithms out.
        if (!computes(algorithm, product) || product.workspace_bytes(algorithm) > preference.max_workspace_bytes ||
            (algorithm.reduction & ~preference.reductions) != 0)
            continue;
        auto& result = results[(*found)++];
        result = {};
        std::memcpy(&result.algo, &algorithm, sizeof algorithm);
        fill(result, algorithm, product);
    }
    return CUBLAS_STATUS_SUCCESS;
}

// Header: whether the device has the algorithm for the product; an algorithm that fails here does not run.
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algorithm_bytes,
                                       cublasLtMatmulHeuristicResult_t* result) {
    STAND_IN_MAY_FAIL(CUBLAS_STATUS_NOT_SUPPORTED);
    Product product;
    const cublasStatus_t status = find_product(product, handle, description, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    Algorithm algorithm;
    if (!read(algorithm, algorithm_bytes)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!computes(algorithm, product)) return CUBLAS_STATUS_NOT_SUPPORTED;
    fill(*result, algorithm, product);  // Header: all but its algorithm.
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm_bytes,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                                                    std::size_t bytes, std::size_t* written) {
    STAND_IN_MAY_FAIL(CUBLAS_STATUS_INVALID_VALUE);
    Algorithm algorithm;
    if (!read(algorithm, algorithm_bytes)) return CUBLAS_STATUS_INVALID_VALUE;
    if (attribute != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME || !value || bytes != sizeof algorithm.reduction)
        return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(value, &algorithm.reduction, bytes);
    if (written) *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

// Whether an algorithm has the value is found by cublasLtMatmulAlgoCheck.
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algorithm_bytes,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
    STAND_IN_MAY_FAIL(CUBLAS_STATUS_INVALID_VALUE);
    Algorithm algorithm;
    if (!read(algorithm, algorithm_bytes)) return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
    if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) status = set(algorithm.parts, value, bytes);
    if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) status = set(algorithm.reduction, value, bytes);
    std::memcpy(algorithm_bytes, &algorithm, sizeof algorithm);
    return status;
}

// Guide: D = epilogue(alpha op(A) op(B) + beta C) in the stream, by the algorithm.
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a_data, cublasLtMatrixLayout_t a, const void* b_data,
                              cublasLtMatrixLayout_t b, const void* beta, const void* c_data, cublasLtMatrixLayout_t c,
                              void* d_data, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algorithm_bytes,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
    STAND_IN_MAY_FAIL(CUBLAS_STATUS_EXECUTION_FAILED);
    Product product;
    const cublasStatus_t status = find_product(product, handle, description, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const Epilogue epilogue = product.epilogue();

    // Guide: no algorithm means the one that default preferences find.
    if (algorithm_bytes && !read(product.algorithm, algorithm_bytes)) return CUBLAS_STATUS_INVALID_VALUE;
    // Header, CUBLASLT_MATMUL_DESC_POINTER_MODE: by default alpha and beta are the host's.
    std::memcpy(&product.alpha, alpha, sizeof product.alpha);
    std::memcpy(&product.beta, beta, sizeof product.beta);
    product.a_data = a_data;
    product.b_data = b_data;
    product.c_data = c_data;
    product.d_data = d_data;

    // Header, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: INVALID_VALUE if types do not support it.
    const Description& described = product.description;
    if ((described.a_scale || described.b_scale) && !product.a.is_fp8()) return CUBLAS_STATUS_INVALID_VALUE;
    // Guide, FP8 kernels: pointers of 16 bytes.
    if (product.a.is_fp8() && (alignment_of(a_data) < 16 || alignment_of(b_data) < 16 || alignment_of(d_data) < 16))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!computes(product.algorithm, product)) return CUBLAS_STATUS_NOT_SUPPORTED;
    // Header, cublasLtMatmulAlgoCheck: an algorithm fails if addresses are less aligned than it needs. The status is
    // not documented.
    if (!aligned_as_promised(product)) return CUBLAS_STATUS_INVALID_VALUE;
    // Guide: the workspace starts at a multiple of 256 bytes; one smaller than the algorithm needs is INVALID_VALUE.
    const std::size_t needed = product.workspace_bytes(product.algorithm);
    if (alignment_of(workspace) < 256 || needed > workspace_bytes || (needed > 0 && !workspace))
        return CUBLAS_STATUS_INVALID_VALUE;
    product.workspace = static_cast<float*>(workspace);

    std::vector<stand_in::Range> ranges = {{a_data, product.a.bytes(), false},
                                           {b_data, product.b.bytes(), false},
                                           {d_data, product.d.bytes(), true}};
    if (product.beta != 0) ranges.push_back({c_data, product.d.bytes(), false});
    if (epilogue.has_bias()) ranges.push_back({product.description.bias, product.bias_bytes(), !epilogue.adds_bias});
    if (epilogue.has_auxiliary())
        ranges.push_back({product.description.auxiliary, product.auxiliary().bytes(), epilogue.gelu});
    for (const float* const scale : {described.a_scale, described.b_scale})
        if (scale) ranges.push_back({scale, sizeof *scale, false});
    if (needed > 0) ranges.push_back({workspace, needed, true});
    const std::string name = "cublasLtMatmul " + std::to_string(product.m()) + " x " + std::to_string(product.n()) +
                             " x " + std::to_string(product.k());
    stand_in::enqueue(stream, name, compute, std::as_bytes(std::span(&product, 1)), ranges,
                      seconds_of(product.algorithm));
    return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
