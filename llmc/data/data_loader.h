// data_loader.h - the training batches of one rank, epoch after epoch
//
// Rows         Every shard is cut from its first token into rows (sequences) of seq_len tokens, whose targets lie one
//              token further. The end of a shard that fills no row is left over; padded, it is a row whose last
//              positions are no targets.
// Order        Sequential: as they lie, shard after shard. Shuffled: one permutation of all rows per epoch, the same
//              for all ranks, drawn from (seed, epoch). Epochs strung together make one endless order.
// Steps        A step takes the next S rows of the order, S = tokens of a step / seq_len. It may begin in one epoch and
//              end in the next, so every row comes exactly once per epoch. Padded, an epoch ends with a step of its
//              own: rows that are missing there are rows without targets, which come last.
// Batches      Micro-step j takes the next world * micro_batch rows, rank r the r-th micro_batch of them. So what makes
//              up a step depends on the data, the order, seq_len and the tokens of a step alone, not on how ranks,
//              micro-batches and accumulation share it. Padded, a batch may have few valid targets, or none.
//
// Offsets are 64-bit throughout.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "llmc/base/background_task.h"
#include "llmc/data/batch.h"
#include "llmc/data/shard_set.h"
#include "llmc/data/shuffle.h"

namespace llmc {

struct DataLoaderOptions {
    BatchShape shape;
    int micro_batches = 1;                     // accumulated per step on each rank
    std::optional<std::uint64_t> shuffle_seed; // empty: sequential
    bool mask_document_start = false;          // ignore_document_starts()
    bool pad = false;                          // keep the ends of shards and epochs, padded
    // prepare the next batch on a thread while this one is used; the batches are the same
    bool prefetch = true;
};

class DataLoader {
public:
    // `shards` must outlive the loader. Throws Error where the data have fewer rows than a step; padded, where they
    // have no target.
    DataLoader(const ShardSet& shards, const DataLoaderOptions& options);
    DataLoader(const DataLoader&) = delete;
    DataLoader& operator=(const DataLoader&) = delete;

    // The next micro-step of this rank, valid until the next call of next() or seek(). Throws a run-time Error for an
    // id outside the vocabulary; the loader then stays where it is and refuses again.
    const Batch& next();

    // The place after the batches handed out so far, whatever was prefetched; seek() goes on there, also with other
    // ranks, micro-batches and tokens of a step. It means something for the same data, sequence length and order only,
    // which is the caller's to check. Throws Error for a place outside the epoch.
    LoaderPosition position() const { return next_; }
    void seek(const LoaderPosition& position);

    std::int64_t targets() const { return targets_; }          // of an epoch, trained on or not
    std::int64_t left_over() const;                            // those of them that no row has
    std::int64_t steps_in(std::int64_t epochs) const;          // whole steps; padded, all of them
    std::int64_t left_over_after(std::int64_t epochs) const;   // targets in rows that fill no step, after these epochs

private:
    LoaderPosition fill(Batch& batch, LoaderPosition at) const;  // returns where the next one begins
    LoaderPosition moved(LoaderPosition at, std::int64_t rows) const;
    std::int64_t rows_in(std::int64_t epochs) const;

    const ShardSet& shards_;
    DataLoaderOptions options_;
    RowNumbers rows_;
    std::int64_t rows_per_step_ = 0, targets_ = 0;
    std::int64_t rows_per_epoch_ = 0;  // padded: to whole steps
    LoaderPosition next_;              // after the batch handed out last

    struct Prepared {
        Batch batch;
        LoaderPosition after;
    };
    Prepared current_, ahead_;
    std::unique_ptr<BackgroundTask> prefetch_;  // last: its thread ends before what it uses
};

}  // namespace llmc
