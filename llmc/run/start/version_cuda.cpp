// version_cuda.cpp - commit and libraries of a GPU build; the Makefile defines the commit
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/attention/attention_cudnn.h"
#include "llmc/run/start/version.h"

namespace llmc {

std::string build_commit() { return TRAIN_GPT2_COMMIT; }

std::vector<std::pair<std::string, std::string>> library_versions() {
    return {{"cuda", dotted_version(CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100, 0)},
            {"cublasLt", dotted_version(CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH)},
            {"cuDNN", kernels::cudnn_version().empty() ? "no" : kernels::cudnn_version()}};
}

}  // namespace llmc
