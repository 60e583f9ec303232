// data_loader.h - the training batches of one rank, epoch after epoch
//
// Sequential   Micro-step j of all ranks takes world * micro_batch * seq_len tokens, rank r the r-th micro_batch *
//              seq_len of them; targets lie one token further. So with D = micro_batches * world * micro_batch *
//              seq_len tokens a step, step k, micro-step m, rank r starts at k * D + (m * world + r) * micro_batch *
//              seq_len of the first shard. A shard is left when the next micro-step and its last target do not fit;
//              what is left of it is dropped. The next shard starts at its first token; after the last comes the first
//              again.
// Shuffled     Every shard is cut into sequences of seq_len tokens (and one target more). One permutation of all of
//              them per epoch, the same for all ranks, drawn from (seed, epoch), strung together epoch after epoch,
//              makes one endless order of rows. Micro-step j takes the next world * micro_batch rows, rank r the r-th
//              micro_batch of them. So which sequences make up a step, and in what order, depends on the seed and the
//              tokens of a step alone, not on how ranks, micro-batches and accumulation share them. Every sequence
//              comes once per epoch; a micro-step may begin in one epoch and end in the next. Dropped: the end of each
//              shard that fills no sequence.
// Padded       Nothing is dropped: the last micro-step of a shard, or its last sequence when shuffled, is filled up
//              with positions that are no targets. A rank's batch may then have few valid targets, or none.
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
    // the first token of a document, whose only context is the end of text before it, is no target
    bool mask_document_start = false;
    bool pad = false;                          // keep the end of every shard, padded, instead of dropping it
    // prepare the next batch on a thread while this one is used; the batches are the same
    bool prefetch = true;
};

// All that is needed to go on, the same on every rank. The other fields tell a state of other data or another order, in
// which `next` means nothing.
struct DataLoaderState {
    LoaderPosition next;
    bool shuffled = false, padded = false;
    std::uint64_t seed = 0;           // shuffled only
    std::int64_t sequences = 0;       // shuffled only: how many are permuted
    std::int64_t shards = 0, tokens = 0;
    bool operator==(const DataLoaderState&) const = default;
};

class DataLoader {
public:
    // `shards` must outlive the loader. Throws Error where the data do not fill one micro-step of all ranks.
    DataLoader(const ShardSet& shards, const DataLoaderOptions& options);
    DataLoader(const DataLoader&) = delete;
    DataLoader& operator=(const DataLoader&) = delete;

    // The next micro-step of this rank, valid until the next call of next() or restore(). Throws a run-time Error for
    // an id outside the vocabulary; the loader then stays where it is and refuses again.
    const Batch& next();

    // The place after the batches handed out so far, whatever was prefetched. restore() goes on there exactly. The
    // sequential place may be restored with another shape; the shuffled one with another world and micro-batch. Throws
    // Error for a state of other data, order, seed or sequence length.
    DataLoaderState state() const;
    void restore(const DataLoaderState& state);

    std::int64_t tokens_per_step() const { return tokens_per_step_; }  // of all ranks and micro-batches
    std::int64_t steps_in(std::int64_t epochs) const;                  // whole steps
    std::int64_t dropped_tokens() const { return dropped_tokens_; }    // per epoch: neither input nor target

private:
    bool fits(const LoaderPosition& at) const;
    void settle(LoaderPosition& at) const;  // moves on to where a sequential micro-step fits
    // how many chunks of so many positions a shard gives
    std::int64_t chunks(const Shard& shard, std::int64_t positions) const;
    LoaderPosition fill(Batch& batch, LoaderPosition at) const;  // returns where the next one begins
    LoaderPosition fill_sequential(Batch& batch, LoaderPosition at) const;
    LoaderPosition fill_shuffled(Batch& batch, LoaderPosition at) const;

    const ShardSet& shards_;
    DataLoaderOptions options_;
    std::int64_t tokens_per_step_ = 0, dropped_tokens_ = 0;
    std::int64_t micro_steps_per_epoch_ = 0;   // sequential
    std::optional<RowNumbers> sequences_;      // shuffled
    LoaderPosition next_;                      // after the batch handed out last

    struct Prepared {
        Batch batch;
        LoaderPosition after;
    };
    Prepared current_, ahead_;
    std::unique_ptr<BackgroundTask> prefetch_;  // last: its thread ends before what it uses
};

}  // namespace llmc
