// attention_cudnn.h - attention by cuDNN, bf16: attention_cudnn.cpp, or attention_cudnn_absent.cpp, which always
// refuses
#pragma once
#include <string>

#include "kernels/attention/cudnn_layout.h"

namespace kernels {

// Version of the loaded library, such as "9.19.0"; empty: this build has no cuDNN.
std::string cudnn_version();

// Owns the handle, the plans and the workspace. All are created on first use, so construction needs no GPU.
class CudnnAttention {
public:
    CudnnAttention();
    ~CudnnAttention();

    // The number of plans of cuDNN's heuristics for a pass of a shape; 1 if there is none, which is refused.
    int plans(const AttentionShape& shape, CudnnPass pass);
    // Builds one of them, by its number from 0. Empty if cuDNN supports it, otherwise the reason.
    std::string refusal(const AttentionShape& shape, CudnnPass pass, int plan = 0);
    // The plan must be built.
    std::size_t workspace_bytes(const AttentionShape& shape, CudnnPass pass, int plan = 0) const;
    // Frees the workspace until the next run of a pass; waits for the device.
    void free_workspace();

    // Enqueue on `stream`, without waiting except in the first run of a shape; outputs are ready when the stream has
    // passed this point. Throw a run-time Error with cuDNN's status, or if the plan has not been built.
    void forward(const AttentionForward<bf16>& op, int plan, StreamRef stream);
    void backward(const AttentionBackward<bf16>& op, CudnnPass pass, int plan, StreamRef stream);

    struct State;

private:
    std::unique_ptr<State> state_;
};

}  // namespace kernels
