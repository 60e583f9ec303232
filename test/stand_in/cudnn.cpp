// cudnn.cpp - a stand-in for libcudnn, which supports nothing: a handle can be made and given back
#include <cudnn.h>

#include <cstdio>

#include "test/stand_in/stand_in.h"

struct cudnnContext {};

extern "C" {

// Makes the library's handle, which other calls need, for the current device.
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
    STAND_IN_MAY_FAIL(CUDNN_STATUS_INTERNAL_ERROR);
    *handle = new cudnnContext;
    stand_in::made(*handle, "cudnnHandle_t");
    return CUDNN_STATUS_SUCCESS;
}
// Gives back what the handle holds, after its last use.
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    const bool fails = stand_in::told_to_fail(__func__);
    stand_in::given_back(handle, "cudnnHandle_t");
    delete handle;
    return fails ? CUDNN_STATUS_INTERNAL_ERROR : CUDNN_STATUS_SUCCESS;
}

// The version of the library: the same number as the header's.
size_t cudnnGetVersion() { return CUDNN_VERSION; }
// The name of the status.
const char* cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_SUCCESS          ? "CUDNN_STATUS_SUCCESS"
           : status == CUDNN_STATUS_INTERNAL_ERROR ? "CUDNN_STATUS_INTERNAL_ERROR"
                                                   : "CUDNN_STATUS_NOT_SUPPORTED";
}
// Words for the last error, cut after so many characters.
void cudnnGetLastErrorString(char* message, size_t max_size) {
    std::snprintf(message, max_size, "the stand-in for cuDNN supports nothing");
}

// The stream that the handle's kernels run in. That it may be refused so is not documented; there is no kernel.
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t) { return CUDNN_STATUS_NOT_SUPPORTED; }
cudnnStatus_t cudnnGetStream(cudnnHandle_t, cudaStream_t*) { return CUDNN_STATUS_NOT_SUPPORTED; }

// A descriptor of that type; NOT_SUPPORTED where the library has none. The functions that follow are of descriptors.
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
