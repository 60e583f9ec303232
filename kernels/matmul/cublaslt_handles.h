// cublaslt_handles.h - owners of cuBLASLt's handles, and typed setters of their attributes
#pragma once
#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "kernels/device/checked_cuda.h"

namespace kernels::cublaslt {

inline std::string fault_of(cublasStatus_t status) {
    if (status == CUBLAS_STATUS_SUCCESS) return {};
    return std::string(cublasLtGetStatusName(status)) + ", " + cublasLtGetStatusString(status);
}

template <class Handle, auto Destroy>
struct Destroyer {
    void operator()(Handle handle) const noexcept { Destroy(handle); }
};
template <class Handle, auto Destroy>
using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroyer<Handle, Destroy>>;

using Library = Owner<cublasLtHandle_t, cublasLtDestroy>;
using Description = Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

inline Library make_library() {
    cublasLtHandle_t handle = nullptr;
    CHECKED(cublasLtCreate(&handle));
    return Library(handle);
}
inline Description make_description(cublasComputeType_t compute) {
    cublasLtMatmulDesc_t handle = nullptr;
    CHECKED(cublasLtMatmulDescCreate(&handle, compute, CUDA_R_32F));
    return Description(handle);
}
inline Layout make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns) {  // column-major and dense
    cublasLtMatrixLayout_t handle = nullptr;
    CHECKED(cublasLtMatrixLayoutCreate(&handle, type, rows, columns, rows));
    return Layout(handle);
}
// `count` such matrices, which follow each other.
inline Layout make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int32_t count) {
    Layout layout = make_layout(type, rows, columns);
    const std::int64_t stride = rows * columns;
    CHECKED(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    CHECKED(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                             sizeof stride));
    return layout;
}
inline Preference make_preference() {
    cublasLtMatmulPreference_t handle = nullptr;
    CHECKED(cublasLtMatmulPreferenceCreate(&handle));
    return Preference(handle);
}
template <class Value>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    CHECKED(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value));
}
template <class Value>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    CHECKED(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}
template <class Value>
void set(cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute, const Value& value) {
    CHECKED(cublasLtMatmulAlgoConfigSetAttribute(&algorithm, attribute, &value, sizeof value));
}

}  // namespace kernels::cublaslt
