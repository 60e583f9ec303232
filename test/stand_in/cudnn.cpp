// cudnn.cpp - stand-in for libcudnn, which supports no operation: a handle can only be created and destroyed
#include <cudnn.h>

#include <cstdio>

#include "test/stand_in/stand_in.h"

struct cudnnContext {};

extern "C" {

// Creates a library handle for the current device; other calls need it.
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
    STAND_IN_MAY_FAIL(CUDNN_STATUS_INTERNAL_ERROR);
    *handle = new cudnnContext;
    stand_in::made(*handle, "cudnnHandle_t");
    return CUDNN_STATUS_SUCCESS;
}
// Releases the handle's resources, after its last use.
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    const bool fails = stand_in::failure_injected(__func__);
    stand_in::released(handle, "cudnnHandle_t");
    delete handle;
    return fails ? CUDNN_STATUS_INTERNAL_ERROR : CUDNN_STATUS_SUCCESS;
}

// The version of the library: the same number as in the header.
size_t cudnnGetVersion() { return CUDNN_VERSION; }
// The name of the status.
const char* cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_SUCCESS          ? "CUDNN_STATUS_SUCCESS"
           : status == CUDNN_STATUS_INTERNAL_ERROR ? "CUDNN_STATUS_INTERNAL_ERROR"
                                                   : "CUDNN_STATUS_NOT_SUPPORTED";
}
// Text of the last error, truncated to max_size characters.
void cudnnGetLastErrorString(char* message, size_t max_size) {
    std::snprintf(message, max_size, "the stand-in for cuDNN supports nothing");
}

// Sets the stream of the handle's kernels. This status is not documented here; the stand-in has no kernels.
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t) { return CUDNN_STATUS_NOT_SUPPORTED; }
cudnnStatus_t cudnnGetStream(cudnnHandle_t, cudaStream_t*) { return CUDNN_STATUS_NOT_SUPPORTED; }

// Creates a descriptor of that type; NOT_SUPPORTED if the library has none. The following functions take descriptors.
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t*) {
    return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t) { return CUDNN_STATUS_NOT_SUPPORTED; }
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_NOT_SUPPORTED; }
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                       cudnnBackendAttributeType_t, int64_t, const void*) {
    return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                       cudnnBackendAttributeType_t, int64_t, int64_t*, void*) {
    return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) {
    return CUDNN_STATUS_NOT_SUPPORTED;
}

}  // extern "C"
