// attention_cudnn.h - attention by cuDNN, bf16: attention_cudnn.cpp | attention_cudnn_absent.cpp, which refuses
// everything
#pragma once
#include "kernels/attention/attention.h"

namespace kernels {

// Of the library that runs, such as "9.19.0"; empty: this build has none.
std::string cudnn_version();

// Owns the handle, the plans and the workspace; all are made when first needed, so a GPU is not.
class CudnnAttention {
public:
    CudnnAttention();
    ~CudnnAttention();
    CudnnAttention(CudnnAttention&&) noexcept;
    CudnnAttention& operator=(CudnnAttention&&) noexcept;

    // Plans the passes of a shape. Empty if cuDNN can do them, else its reason.
    std::string refusal(const AttentionShape& shape, bool backward);
    // Of the passes planned for the shape.
    std::size_t workspace_bytes(const AttentionShape& shape, bool backward) const;

    // Enqueue on `stream`, without waiting for anything once a shape has run; outputs are ready when the stream has
    // passed this point. The gradient has the same bits every time. Throw a run-time Error that names cuDNN's status,
    // or says that the shape has not been planned.
    void forward(const AttentionForward<bf16>& op, StreamRef stream);
    void backward(const AttentionBackward<bf16>& op, StreamRef stream);

    struct State;

private:
    std::unique_ptr<State> state_;
};

}  // namespace kernels
