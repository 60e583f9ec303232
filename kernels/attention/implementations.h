// implementations.h - the attention implementations of a build
#pragma once
#include <functional>
#include <vector>

#include "kernels/attention/cudnn_layout.h"

namespace kernels {

// In order of preference: plain_gpu.cu (cuda, fibers) | attention_cpu.cpp. A CPU has one, the latter, under the name
// plain.
std::vector<AttentionMethod> attention_methods();

// The candidates of these methods in the order in which they are tried if no times are known; at least one. cuDNN has
// one for each pair of plans, of which it has `plans` for a pass (default: 1), also with the faster backward pass
// unless it must be deterministic. Throws Error that names --attention if settings.method is not automatic and the
// methods, the dtype or the shape do not support it.
std::vector<AttentionPlan> attention_candidates(const AttentionSettings& settings,
                                                const std::vector<AttentionMethod>& methods, DType dtype,
                                                const AttentionShape& shape, bool backward,
                                                const std::function<int(CudnnPass)>& plans = {});

}  // namespace kernels
