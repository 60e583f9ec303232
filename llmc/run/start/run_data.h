// run_data.h - the data files that a run reads, and the batches made from them
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "llmc/comm/agreement.h"
#include "llmc/data/data_loader.h"
#include "llmc/data/hellaswag_batches.h"
#include "llmc/data/shard_set.h"
#include "llmc/data/validation_batches.h"
#include "llmc/run/options/options.h"

namespace llmc {

struct RunData {
    // --train-data, --val-data: either may be null; both only if HellaSwag alone is evaluated.
    std::unique_ptr<const ShardSet> train, val;
    std::vector<Fact> train_facts, val_facts, hellaswag_facts;  // shared_facts.h
    BatchShape batch;
    std::int64_t step_tokens = 0;          // positions of one step over all ranks
    int micro_batches = 0;                 // of this rank in one step
    std::unique_ptr<DataLoader> loader{};  // null with --eval-only
    std::optional<ValidationBatches> validation{};
    std::optional<HellaSwagBatches> hellaswag{};

    Vocabulary vocabulary() const {
        return train ? train->vocabulary() : val ? val->vocabulary() : hellaswag->file().vocabulary();
    }
};

// Throws Error for files that cannot be read or do not match each other or the options.
RunData open_run_data(const Options& options, const Communicator& ranks);

}  // namespace llmc
