// build.h - which implementations of attention a build holds: build_gpu.cpp (cuda, fibers) | build_cpu.cpp
#pragma once
#include <vector>

#include "kernels/attention/attention.h"

namespace kernels {

struct AttentionBuild {
    std::string_view plain;  // what attention_forward and attention_backward are, for the log
    bool choice;             // false: that is the only implementation
    bool cudnn;
    bool (*flash_supports)(int head_size);
    void (*flash_forward)(const AttentionForward<bf16>& op, StreamRef stream);
    void (*flash_backward)(const AttentionBackward<bf16>& op, StreamRef stream);
};
AttentionBuild attention_build();

// The methods to try one after another, never none. Throws Error that names --attention where `asked` is a name and
// this build, the dtype or the head size rules it out.
std::vector<AttentionMethod> attention_candidates(AttentionMethod asked, const AttentionBuild& build, DType dtype,
                                                  int head_size);

// What can be timed against each other: a method, cuDNN with its repeatable backward pass or the other one.
struct AttentionForm {
    AttentionMethod method;
    bool deterministic = true;
    bool operator==(const AttentionForm&) const = default;
    std::string name() const;  // under which it is kept
};
// The forms of the methods, in the order in which they are tried where no times are known.
std::vector<AttentionForm> attention_forms(const std::vector<AttentionMethod>& methods, bool backward,
                                           bool deterministic);

}  // namespace kernels
