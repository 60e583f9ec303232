// product_cudnn_absent.cpp - product_cudnn.h for builds without cuDNN
#include "kernels/base/error.h"
#include "kernels/matmul/product_cudnn.h"

namespace kernels {

struct CudnnProduct::State {};
CudnnProduct::CudnnProduct() = default;
CudnnProduct::~CudnnProduct() = default;

std::vector<AlgorithmBytes> CudnnProduct::algorithms(const ProductShape&) { return {}; }
int CudnnProduct::build(const ProductShape&, const AlgorithmBytes&, std::size_t) {
    throw Error("this build has no cuDNN", Blame::runtime);
}
void CudnnProduct::run(const ProductShape&, int, const CudnnProductOperands&, void*, StreamRef) {}

}  // namespace kernels
