// memory_plan.h - what a run will take from the device's memory, counted before anything is allocated
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "llmc/model/model.h"
#include "llmc/model/onebit_settings.h"

namespace llmc {

struct MemoryPlan {
    struct Line {
        std::string what;
        std::size_t bytes;
    };
    std::vector<Line> lines;
    std::size_t available = 0;    // to this rank; 0: unknown
    int ranks = 1;
    int micro_batch = 0;          // sequences it counts
    int largest_micro_batch = 0;  // the most of them that fit; 0: not even one

    std::size_t total() const;
    bool fits() const { return available == 0 || total() <= available; }
    std::string text() const;     // one line each, in MiB, then the sum and what the device has
};
// `table` is that of setup.config. reduce_in_bf16: gradients travel between ranks in bf16, which takes a copy.
// checkpoint_copies: bytes from which checkpoints are written, where they are the device's memory. onebit: of
// 1-bit Adam, if that is the optimizer. samples: bytes that drawing samples takes, where that is done.
MemoryPlan plan_memory(const ModelSetup& setup, const ParameterTable& table, const Context& context,
                       bool reduce_in_bf16, std::size_t checkpoint_copies = 0,
                       const std::optional<OnebitSettings>& onebit = {}, std::size_t samples = 0);

// Throws Error when the plan exceeds what is available; it names the largest micro-batch that fits, or says that none
// does.
void require_room(const MemoryPlan& plan);

}  // namespace llmc
