// memory_plan.h - what a run will take from the device's memory, counted before anything is allocated
#pragma once
#include <string>
#include <vector>

#include "llmc/model/model.h"

namespace llmc {

struct MemoryPlan {
    struct Line {
        std::string what;
        std::size_t bytes;
    };
    std::vector<Line> lines;
    std::size_t available = 0;  // 0: unknown
    std::size_t total() const;
    std::string text() const;   // one line each, in MiB, then the sum and what the device has
};
// reduce_in_bf16: gradients travel between ranks in bf16, which takes a copy.
MemoryPlan plan_memory(const ModelSetup& setup, const Context& context, bool reduce_in_bf16 = false);

// Throws Error when the plan exceeds what is available; it names the largest micro-batch that fits, or says that none
// does.
void require_room(const ModelSetup& setup, const Context& context, bool reduce_in_bf16 = false);

}  // namespace llmc
