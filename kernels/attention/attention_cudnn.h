// attention_cudnn.h - attention by cuDNN, bf16: attention_cudnn.cpp | attention_cudnn_absent.cpp, which refuses
// everything
#pragma once
#include <string>
#include <vector>

#include "kernels/attention/cudnn_layout.h"

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

    // Plans a pass of a shape, by the first plan that cuDNN offers. Empty if cuDNN can do it, else its reason.
    std::string refusal(const AttentionShape& shape, CudnnPass pass);
    // Of a pass that is planned for the shape: the bytes of the selected plan.
    std::size_t workspace_bytes(const AttentionShape& shape, CudnnPass pass) const;
    // The same: builds the first `most` plans, and gives the names of those within the workspace, in cuDNN's order.
    std::vector<std::string> plans(const AttentionShape& shape, CudnnPass pass, int most, std::size_t most_workspace);
    // The same: runs by the plan of that name from now on. False: this cuDNN does not offer it, or cannot build it.
    bool select(const AttentionShape& shape, CudnnPass pass, const std::string& plan);
    // Gives the workspace back, until the next run of a pass; waits for the device.
    void free_workspace();

    // Enqueue on `stream`, without waiting for anything once a shape has run; outputs are ready when the stream has
    // passed this point. Throw a run-time Error that names cuDNN's status, or says that the shape has not been planned.
    void forward(const AttentionForward<bf16>& op, StreamRef stream);
    void backward(const AttentionBackward<bf16>& op, CudnnPass pass, StreamRef stream);

    struct State;

private:
    std::unique_ptr<State> state_;
};

}  // namespace kernels
