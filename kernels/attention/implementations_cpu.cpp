// implementations_cpu.cpp - implementations.h for CPU builds
#include "kernels/attention/implementations.h"
#include "kernels/attention/flash.h"
#include "kernels/base/error.h"

namespace kernels {

std::vector<AttentionMethod> attention_methods() { return {AttentionMethod::plain}; }

void flash_attention_forward(const AttentionForward<bf16>&, StreamRef) {
    throw Error("this build has no flash attention", Blame::runtime);
}
void flash_attention_backward(const AttentionBackward<bf16>&, StreamRef) {
    throw Error("this build has no flash attention", Blame::runtime);
}

}  // namespace kernels
