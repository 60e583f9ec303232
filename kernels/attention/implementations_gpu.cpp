// implementations_gpu.cpp - implementations.h for builds with the GPU geometry (cuda, fibers)
#include "kernels/attention/implementations.h"
#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/flash.h"

namespace kernels {

AttentionBuild attention_build() {
    return {.plain = "plain", .cudnn = !cudnn_version().empty(), .flash_head_sizes = kFlashHeadSizes};
}

}  // namespace kernels
