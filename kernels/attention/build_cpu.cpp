// build_cpu.cpp - build.h for CPU builds
#include "kernels/attention/build.h"

namespace kernels {

AttentionBuild attention_build() { return {.plain = "tiled on the CPU", .choice = false}; }

}  // namespace kernels
