// implementations_cpu.cpp - implementations.h for CPU builds
#include "kernels/attention/implementations.h"

namespace kernels {

AttentionBuild attention_build() { return {.plain = "tiled on the CPU", .choice = false}; }

}  // namespace kernels
