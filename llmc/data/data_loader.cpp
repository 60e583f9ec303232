// data_loader.cpp - selects the rows of the next batch, sequentially or shuffled
#include "llmc/data/data_loader.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/base/error.h"
#include "kernels/base/integers.h"
#include "llmc/base/number_text.h"

namespace llmc {
namespace {

RowNumbers number_rows(const ShardSet& shards, const DataLoaderSettings& settings) {
    const std::int64_t seq_len = settings.steps.batch().seq_len;
    std::vector<std::int64_t> rows;
    for (const Shard& shard : shards.shards())
        rows.push_back((shard.tokens() - 1 + (settings.data.pad_last ? seq_len - 1 : 0)) / seq_len);
    return RowNumbers(rows);
}

}  // namespace

DataLoader::DataLoader(const ShardSet& shards, const DataLoaderSettings& settings)
    : shards_(shards), settings_(settings), rows_(number_rows(shards, settings)) {
    const StepPlan& steps = settings_.steps;
    const BatchShape& shape = steps.batch();
    const std::int64_t seq_len = shape.seq_len;
    const std::int64_t tokens_per_step = steps.largest(), rows_per_step = tokens_per_step / seq_len;
    targets_ = shards_.tokens() - shards_.size();  // the first token of a shard is not a target

    std::vector<std::int64_t> weights;
    std::int64_t shard = 0;
    for (const Corpus& corpus : shards_.corpora()) {
        const std::int64_t first = rows_.first(shard), count = rows_.first(shard += corpus.shards) - first;
        corpora_.push_back({first, count});
        weights.push_back(corpus.weight);
        require(count > 0 || corpus.weight == 0, "the number of sequences of " + in_quotes(corpus.pattern), 0,
                "at least 1", "use a smaller --seq-len, or more data");
    }
    if (shards_.is_weighted()) mix_.emplace(weights);
    const std::int64_t rows = rows_.total();
    if (settings_.data.pad_last && mix_) {
        rows_per_epoch_ = rows;
    } else if (settings_.data.pad_last) {
        require(rows > 0, "number of tokens in the longest shard of the training data", 1,
                "at least 2, an input and its target", "use more data");
        require(steps.is_constant(), "--pad-last", "set for steps of several sizes",
                "steps of one size, to which the last step of an epoch is filled up", "use one size");
        rows_per_epoch_ = round_up(rows, rows_per_step);
    } else {
        const std::int64_t at_once = shape.global_rows(), unit = rows < at_once ? shape.world : at_once;
        const std::string most = std::to_string(rows / unit * unit * seq_len);
        if (rows < rows_per_step)
            throw Error("one step needs " + with_commas(rows_per_step, "sequence") + " of " +
                        counted(seq_len, "token") + "; the training data, " + with_commas(shards_.tokens(), "token") +
                        ", has " + with_commas(rows) + "; use " +
                        (rows < unit ? shape.world > 1 ? "fewer ranks or a smaller --seq-len" : "a smaller --seq-len"
                                     : (rows < at_once ? "-b auto and " : "") +
                                           ((steps.is_constant() ? "at most -d " : "steps of at most ") + most)) +
                        ", more data (in one shard at least " + with_commas(tokens_per_step + 1, "token") +
                        ", with the last target)" +
                        (steps.is_constant() ? ", or partial steps with --pad-last" : ""));
        rows_per_epoch_ = rows;
    }
    current_.batch = Batch(shape);
    if (settings_.prefetch) {
        ahead_.batch = Batch(shape);
        prefetch_ = std::make_unique<BackgroundTask>([this] { ahead_.after = fill(ahead_.batch, next_); });
    }
}

LoaderPosition DataLoader::moved(LoaderPosition at, std::int64_t rows) const {
    const std::int64_t row = at.row + rows;
    return {.epoch = at.epoch + row / rows_per_epoch_, .row = row % rows_per_epoch_};
}

std::int64_t DataLoader::row_of_mix(std::int64_t position) const {
    const auto [corpus, number] = (*mix_)(position);
    const auto [first, count] = corpora_[std::size_t(corpus)];
    const std::int64_t epoch = number / count, row = number % count;
    return first +
           (settings_.data.shuffle ? Permutation(count, settings_.seed, std::uint64_t(epoch))(row) : row);
}

LoaderPosition DataLoader::fill(Batch& batch, LoaderPosition at) const {
    const auto [micro_batch, seq_len, rank, world] = settings_.steps.batch();
    batch.from = at;
    std::optional<Permutation> shuffled;
    LoaderPosition next = moved(at, std::int64_t(rank) * micro_batch);
    std::int64_t count;
    for (std::int64_t row = 0; row < micro_batch; row += count, next = moved(next, count)) {
        if (settings_.data.shuffle && !mix_ && (!shuffled || next.row == 0))
            shuffled.emplace(rows_.total(), settings_.seed, std::uint64_t(next.epoch));
        RowNumbers::Place place{.shard = 0, .row = 0, .left = rows_per_epoch_ - next.row};
        const bool has_tokens = next.row < rows_.total();
        if (mix_) place = rows_.find(row_of_mix(next.epoch * rows_per_epoch_ + next.row));
        else if (has_tokens) place = rows_.find(shuffled ? (*shuffled)(next.row) : next.row);
        // Consecutive rows are read in one call.
        count = (shuffled || mix_) && has_tokens ? 1 : std::min(micro_batch - row, place.left);
        const Shard& shard = shards_[place.shard];
        const std::int64_t first = place.row * seq_len;
        const std::int64_t valid = has_tokens ? std::min(count * seq_len, shard.tokens() - 1 - first) : 0;
        const auto begin = std::size_t(row * seq_len), length = std::size_t(count * seq_len);
        fill_rows(shard, first, valid, std::span(batch.inputs).subspan(begin, length),
                  std::span(batch.targets).subspan(begin, length));
    }
    if (settings_.data.mask_document_start) ignore_document_starts(batch, shards_.vocabulary().end_of_text);
    if (settings_.data.mask_document_start || settings_.data.pad_last) count_valid_targets(batch);
    else batch.valid_targets = settings_.steps.batch().positions();
    return moved(at, settings_.steps.batch().global_rows());
}

const Batch& DataLoader::next() {
    if (prefetch_) {
        if (!prefetch_->started()) prefetch_->start();
        prefetch_->wait();
        std::swap(current_, ahead_);
        next_ = current_.after;
        prefetch_->start();
    } else {
        next_ = fill(current_.batch, next_);
    }
    return current_.batch;
}

void DataLoader::seek(const LoaderPosition& position) {
    require(position.epoch >= 0 && position.epoch <= std::numeric_limits<std::int64_t>::max() / rows_per_epoch_,
            "epoch to seek to", position.epoch, "at least 0, with a row number that fits in 64 bits");
    require(position.row >= 0 && position.row < rows_per_epoch_,
            "row of the epoch to seek to", position.row, "0 to " + std::to_string(rows_per_epoch_ - 1));
    if (prefetch_) {
        try {
            prefetch_->wait();
        } catch (const Error&) {
            // The prefetched batch is discarded, and its error with it.
        }
    }
    next_ = position;
}

std::int64_t DataLoader::positions_in(std::int64_t epochs) const {
    const std::int64_t of_epoch = rows_per_epoch_ * settings_.steps.batch().seq_len;
    require(epochs >= 0 && epochs <= std::numeric_limits<std::int64_t>::max() / of_epoch, "number of epochs", epochs,
            "at least 0, with a number of tokens that fits in 64 bits");
    return epochs * of_epoch;
}

double DataLoader::epochs_of_corpus(std::int64_t corpus, std::int64_t positions) const {
    const std::int64_t rows = corpora_[std::size_t(corpus)].count;
    return double(mix_->rows_of(corpus, positions / settings_.steps.batch().seq_len)) / double(rows);
}

std::int64_t DataLoader::dropped_per_epoch() const {
    return settings_.data.pad_last ? 0 : targets_ - rows_.total() * settings_.steps.batch().seq_len;
}

void add_options(OptionList& list, DataSettings& s) {
    list.group("Data and model");
    list.entry(
        "i,train-data", s.train,
        "training shards: glob patterns; may be repeated, the shards are read in this order, or in the proportions of "
        "weights: 'web_*.bin:0.7' 'books_*.bin:0.3'",
        OnRanks::of_the_host);
    list.entry("j,val-data", s.val,
        "validation shards: like --train-data; each pattern has a loss of its own, and its weight in their mean",
        OnRanks::of_the_host);
    list.group("Batch and length");
    list.entry("shuffle", s.shuffle,
        "read the sequences in random order, a new one for every epoch (see --seed); off: in the order of the "
        "shards, which fits documents that are in random order already, such as FineWeb's",
        OnResume::same, ByRun{});
    list.entry("mask-document-start", s.mask_document_start,
        "ignore the loss on the first token of every document, which has no context, in training and validation; auto: "
        "as in the run of --init's model, else off",
        OnResume::same, ByRun{});
    list.entry("document-mask", s.document_mask,
        "attention stays within documents, whose positions count from 0, in training and validation; use the model as "
        "it was trained; auto: as in the run of --init's model, if that is known; on for a new model on a CPU if two "
        "or more documents start in a sequence",
        OnResume::same, ByRun{});
    list.entry("pad-last", s.pad_last,
        "pad the last sequence of a shard and the last step of an epoch with ignored targets, so that every token is "
        "used",
        OnResume::same);
    list.entry("a,overfit-batch", s.overfit_batch,
        "repeat the first step's batch in every step, to check that the loss goes to 0", OnResume::same);
}

}  // namespace llmc
