// step_batches.h - the micro-batches of one update after another; with --overfit-batch those of the first, again and
// again
#pragma once
#include <vector>

#include "llmc/data/data_loader.h"

namespace llmc {

class StepBatches {
public:
    // The loader must outlive it.
    StepBatches(DataLoader& loader, bool repeat_first_step) : loader_(loader), repeat_(repeat_first_step) {}

    // Micro-batches are asked for in their order, from 0. Valid until the next call.
    const Batch& next(int micro_batch) {
        if (!repeat_) return loader_.next();
        if (std::ssize(first_step_) <= micro_batch) first_step_.push_back(loader_.next());
        return first_step_[std::size_t(micro_batch)];
    }

private:
    DataLoader& loader_;
    bool repeat_;
    std::vector<Batch> first_step_;
};

}  // namespace llmc
