// step_batches.h - the micro-batches of each step; with --overfit-batch those of the first step, repeated
#pragma once
#include <exception>
#include <vector>

#include "kernels/device/types.h"
#include "llmc/data/data_loader.h"

namespace llmc {

class StepBatches {
public:
    // The loader must outlive it. `positions`: of a micro-batch.
    StepBatches(DataLoader& loader, bool repeat_first_step, std::size_t positions)
        : loader_(loader), repeat_(repeat_first_step), positions_(positions) {}

    // Call it in the order of the micro-batches, from 0. Valid until the next call. If the loader throws, the Error is
    // stored in failure(), and batches have no targets from then on: the other ranks need this one's collectives until
    // all ranks know.
    const Batch& next(int micro_batch) {
        try {
            if (!failure_) return read(micro_batch);
        } catch (...) {
            failure_ = std::current_exception();
            without_targets_.inputs.assign(positions_, 0);
            without_targets_.targets.assign(positions_, kernels::kIgnoreTarget);
        }
        return without_targets_;
    }
    LoaderPosition position() const { return loader_.position(); }  // of the next batch
    const std::exception_ptr& failure() const { return failure_; }  // of the loader

private:
    const Batch& read(int micro_batch) {
        if (!repeat_) return loader_.next();
        if (std::ssize(first_step_) <= micro_batch) first_step_.push_back(loader_.next());
        return first_step_[std::size_t(micro_batch)];
    }

    DataLoader& loader_;
    bool repeat_;
    std::size_t positions_;
    std::vector<Batch> first_step_;
    std::exception_ptr failure_;
    Batch without_targets_;
};

}  // namespace llmc
