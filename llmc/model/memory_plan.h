// memory_plan.h - the device memory that a run will use, counted before anything is allocated
#pragma once
#include <string>
#include <vector>

#include "llmc/model/model.h"
#include "llmc/model/optimizer.h"

namespace llmc {

struct MemoryPlan {
    struct Line {
        std::string what;
        std::size_t bytes;
    };
    std::vector<Line> lines;
    std::size_t available = 0;    // for this rank; 0: unknown
    int ranks = 1;
    int micro_batch = 0;          // in sequences
    int largest_micro_batch = 0;  // the largest that fits; 0: none
    std::string savings{};        // the flags that save memory and are not set

    std::size_t total() const;
    bool fits() const { return available == 0 || total() <= available; }
    std::string text() const;     // one line each, in MiB, then the total and the available memory
    std::string summary() const;  // these two in one line
};
struct MemoryUses {
    ModelSetup setup;
    OptimizerSettings optimizer{};
    bool reduce_in_bf16 = false;        // gradients are reduced in bf16, which takes a copy
    std::size_t checkpoint_copies = 0;  // bytes that checkpoints are written from, if they are in device memory
    std::size_t samples = 0;            // bytes for drawing samples
};
// `table` is that of setup.config.
MemoryPlan plan_memory(const MemoryUses& uses, const ParameterTable& table, const Context& context);

// Throws Error if the plan exceeds the available memory; the message has flags with the largest micro-batch that fits,
// if any. `sequences`: of this rank in a step, which it divides; 0: any. `step_flags`: that keep a step's tokens.
void require_room(const MemoryPlan& plan, std::int64_t sequences = 0, const std::string& step_flags = "");

}  // namespace llmc
