// implementations_gpu.cpp - implementations.h for builds with the GPU geometry (cuda, fibers)
#include "kernels/attention/implementations.h"
#include "kernels/attention/attention_cudnn.h"

namespace kernels {

std::vector<AttentionMethod> attention_methods() {
    using enum AttentionMethod;
    return cudnn_version().empty() ? std::vector{flash, plain} : std::vector{cudnn, flash, plain};
}

}  // namespace kernels
