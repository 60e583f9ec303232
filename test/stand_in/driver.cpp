// driver.cpp - stand-in for the driver, libcuda.so.1, where cuDNN only plans (cudnn_plans.cpp): it accepts kernels and
// has no GPU. The Makefile generates all other functions of cuda.h, which return CUDA_ERROR_NOT_INITIALIZED
#include <cuda.h>

extern "C" {

CUresult cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                           unsigned) {
    *library = reinterpret_cast<CUlibrary>(new char);
    return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char*) {
    *kernel = reinterpret_cast<CUkernel>(library);
    return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary library) {
    delete reinterpret_cast<char*>(library);
    return CUDA_SUCCESS;
}

}  // extern "C"
