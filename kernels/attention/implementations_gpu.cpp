// implementations_gpu.cpp - implementations.h for builds with the GPU geometry (cuda, fibers)
#include "kernels/attention/implementations.h"
#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/flash.h"

namespace kernels {

AttentionBuild attention_build() {
    return {.plain = "plain", .choice = true, .cudnn = !cudnn_version().empty(),
            .flash_supports = flash_attention_supports, .flash_forward = flash_attention_forward,
            .flash_backward = flash_attention_backward};
}

}  // namespace kernels
