// data_loader.h - the training batches of one rank, epoch after epoch
//
// Rows         Every shard is divided from its first token into rows (sequences) of seq_len tokens, with targets
//              shifted by one token. A partial row at the end of a shard is dropped (drop_last in PyTorch); with
//              padding, its last positions have no targets.
// Order        Sequential: shard after shard, in file order. Shuffled: one permutation of all rows per epoch, the same
//              for all ranks, drawn from (seed, epoch). The epochs together form one endless order.
// Weights      Patterns with weights are corpora, drawn in the fixed order of data_mix.h: row r of the run is the next
//              row of the corpus that this order names, from as many epochs of that corpus, each shuffled by itself, as
//              are needed. An epoch of the whole is as many rows as all corpora have; with padding, too.
// Steps        A step takes the next S rows of the order, S = tokens per step / seq_len. It may start in one epoch and
//              end in the next, so every row occurs exactly once per epoch. With padding, no step spans two epochs:
//              the last step of an epoch is filled up with rows without targets, which come last.
// Batches      Micro-batch j of a step takes the next ranks * micro_batch_size rows; rank r gets the r-th slice of
//              micro_batch_size rows. So the rows of a step depend only on the data, the order, seq_len and the tokens
//              per step, not on the number of ranks or the micro-batch size. With padding, a micro-batch may have few
//              valid targets, or none.
//
// All offsets are 64-bit.
#pragma once
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/types.h"
#include "llmc/base/background_task.h"
#include "llmc/base/option.h"
#include "llmc/data/batch.h"
#include "llmc/data/data_mix.h"
#include "llmc/data/shard_set.h"
#include "llmc/data/shuffle.h"
#include "llmc/data/step_plan.h"

namespace llmc {

struct DataSettings {
    std::vector<std::string> train{}, val{};  // globs of shards
    bool shuffle = false;              // a new order of rows for every epoch
    bool mask_document_start = false;  // ignore_document_starts()
    bool document_mask = false;        // documents of a row do not see each other (kernels/documents.h)
    bool pad_last = false;             // pad the ends of shards and epochs instead of dropping them
    bool overfit_batch = false;        // the first step's batch in every step
};
void add_options(OptionList& list, DataSettings& settings);

struct DataLoaderSettings {
    StepPlan steps;         // with the shape of batches
    DataSettings data{};
    std::uint64_t seed = 0; // of the order of rows
    bool prefetch = true;   // a thread prepares the next batch, which is the same without it
};

class DataLoader {
public:
    // `shards` must outlive the loader. Throws Error if the data has fewer rows than a step; with padding, if it has no
    // target.
    DataLoader(const ShardSet& shards, const DataLoaderSettings& settings);
    DataLoader(const DataLoader&) = delete;
    DataLoader& operator=(const DataLoader&) = delete;

    // The next micro-batch of this rank, valid until the next call of next() or seek(). Throws a run-time Error for an
    // id outside the vocabulary; the position then does not change, and the next call throws again.
    const Batch& next();

    // The position after the batches returned so far, independent of prefetching. seek() continues from it, also with
    // other numbers of ranks, micro-batches and tokens per step. A position is valid only for the same data, sequence
    // length and order; the caller must check that. Throws Error for a position outside the epoch.
    LoaderPosition position() const { return next_; }
    void seek(const LoaderPosition& position);

    std::int64_t targets() const { return targets_; }          // per epoch, trained on or not
    std::int64_t dropped_per_epoch() const;                    // targets at the ends of shards that are in no row
    // How often the first positions read the rows of a corpus, by its number in shards.corpora(), which have weights.
    double epochs_of_corpus(std::int64_t corpus, std::int64_t positions) const;
    std::int64_t positions_in(std::int64_t epochs) const;      // with padding, in whole steps

private:
    LoaderPosition fill(Batch& batch, LoaderPosition at) const;  // returns the position of the next batch
    LoaderPosition moved(LoaderPosition at, std::int64_t rows) const;
    std::int64_t row_of_mix(std::int64_t position) const;  // its number in rows_

    struct CorpusRows {
        std::int64_t first, count;  // in rows_
    };
    const ShardSet& shards_;
    DataLoaderSettings settings_;
    RowNumbers rows_;
    std::optional<DataMix> mix_;       // empty: no weights
    std::vector<CorpusRows> corpora_;  // of the mix
    std::int64_t targets_ = 0;
    std::int64_t rows_per_epoch_ = 0;  // with padding: rounded up to full steps
    LoaderPosition next_;              // position()

    struct Prepared {
        Batch batch;
        LoaderPosition after;
    };
    Prepared current_, ahead_;
    std::unique_ptr<BackgroundTask> prefetch_;  // declared last: its thread ends before the other members are destroyed
};

// The micro-batches of each step; with --overfit-batch those of the first step, repeated.
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
