// implementations.h - the attention implementations of a build: implementations_gpu.cpp (cuda, fibers) |
// implementations_cpu.cpp
#pragma once
#include <span>
#include <vector>

#include "kernels/attention/attention.h"

namespace kernels {

struct AttentionBuild {
    std::string_view plain;  // name of attention_forward and attention_backward for the log
    bool cudnn;
    std::span<const int> flash_head_sizes;  // those that flash.h supports; empty: the build has no flash attention
    // false: plain is the only implementation
    bool choice() const { return cudnn || !flash_head_sizes.empty(); }
    bool flash_takes(int head_size) const;
};
AttentionBuild attention_build();

// The methods to try, in order of preference; at least one. Throws Error that names --attention if `asked` is not
// automatic and this build, the dtype or the head size does not support it.
std::vector<AttentionMethod> attention_candidates(AttentionMethod asked, const AttentionBuild& build, DType dtype,
                                                  int head_size);

// A candidate for timing: a method; for cuDNN also whether its backward pass is deterministic.
struct AttentionForm {
    AttentionMethod method;
    bool deterministic = true;
    bool operator==(const AttentionForm&) const = default;
    std::string name() const;  // the key under which its time is stored
};
// The candidates of the methods, in the order in which they are tried if no times are known.
std::vector<AttentionForm> attention_forms(const std::vector<AttentionMethod>& methods, bool backward,
                                           bool deterministic);

}  // namespace kernels
