// attention_cudnn_absent.cpp - attention_cudnn.h for builds without cuDNN
#include "kernels/attention/attention_cudnn.h"
#include "kernels/base/error.h"

namespace kernels {

struct CudnnAttention::State {};
CudnnAttention::CudnnAttention() = default;
CudnnAttention::~CudnnAttention() = default;

std::string cudnn_version() { return ""; }
int CudnnAttention::plans(const AttentionShape&, CudnnPass) { return 1; }
std::string CudnnAttention::refusal(const AttentionShape&, CudnnPass, int) { return "this build has no cuDNN"; }
std::size_t CudnnAttention::workspace_bytes(const AttentionShape&, CudnnPass, int) const { return 0; }
void CudnnAttention::free_workspace() {}
void CudnnAttention::forward(const AttentionForward<bf16>&, int, StreamRef) {
    throw Error("this build has no cuDNN", Blame::runtime);
}
void CudnnAttention::backward(const AttentionBackward<bf16>&, CudnnPass, int, StreamRef) {
    throw Error("this build has no cuDNN", Blame::runtime);
}

}  // namespace kernels
