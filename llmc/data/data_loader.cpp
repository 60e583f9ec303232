// data_loader.cpp - which tokens of which shard make up the next batch, in sequence or shuffled
#include "llmc/data/data_loader.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/device/error.h"
#include "kernels/device/types.h"

namespace llmc {
namespace {

std::string in_words(const BatchShape& shape) {
    return std::to_string(shape.world) + " ranks * micro-batch " + std::to_string(shape.micro_batch) +
           " * sequence length " + std::to_string(shape.seq_len);
}

void ignore_document_starts(Batch& batch, std::int32_t end_of_text) {
    for (std::size_t i = 0; i < batch.inputs.size(); ++i)
        if (batch.inputs[i] == end_of_text) batch.targets[i] = kernels::kIgnoreTarget;
}

// Tokens of a shard that are neither input nor target when so many positions of it are used.
std::int64_t tokens_left_over(const Shard& shard, std::int64_t positions) {
    return positions == 0 ? shard.tokens() : std::max<std::int64_t>(0, shard.tokens() - 1 - positions);
}

}  // namespace

DataLoader::DataLoader(const ShardSet& shards, const DataLoaderOptions& options)
    : shards_(shards), options_(options) {
    const BatchShape& shape = options_.shape;
    check(shape);
    require(options_.micro_batches >= 1, "micro-batches per step", options_.micro_batches, "at least 1");
    require(!__builtin_mul_overflow(shape.global_positions(), std::int64_t(options_.micro_batches), &tokens_per_step_),
            "micro-batches per step", options_.micro_batches, "few enough that the tokens of a step fit 64 bits");

    const char* const mend = "lower the micro-batch, the sequence length or the number of ranks, or use more data";
    if (options_.shuffle_seed) {
        std::vector<std::int64_t> sequences;
        for (const Shard& shard : shards_.shards()) {
            sequences.push_back(chunks(shard, shape.seq_len));
            dropped_tokens_ += tokens_left_over(shard, sequences.back() * shape.seq_len);
        }
        sequences_.emplace(sequences);
        require(sequences_->total() >= shape.global_rows(),
                "number of whole sequences in the " + std::to_string(shards_.tokens()) + " tokens of the training data",
                sequences_->total(),
                "at least " + std::to_string(shape.global_rows()) + " for one micro-batch (" + in_words(shape) + ")",
                mend);
    } else {
        std::int64_t longest = 0;
        for (const Shard& shard : shards_.shards()) {
            const std::int64_t steps = chunks(shard, shape.global_positions());
            micro_steps_per_epoch_ += steps;
            dropped_tokens_ += tokens_left_over(shard, steps * shape.global_positions());
            longest = std::max(longest, shard.tokens());
        }
        require(micro_steps_per_epoch_ > 0, "number of tokens in the longest shard of the training data", longest,
                "at least " + std::to_string(shape.global_positions() + 1) +
                    " for one micro-batch and its last target (" + in_words(shape) + " + 1)",
                mend);
        for (const Shard& shard : shards_.shards()) shard.expect_sequential_reads();
        settle(next_);
    }
    current_.batch = Batch(shape);  // only now that the shape is known to be possible
    if (options_.prefetch) {
        ahead_.batch = Batch(shape);
        prefetch_ = std::make_unique<BackgroundTask>([this] { ahead_.after = fill(ahead_.batch, next_); });
    }
}

std::int64_t DataLoader::chunks(const Shard& shard, std::int64_t positions) const {
    return (shard.tokens() - 1 + (options_.pad ? positions - 1 : 0)) / positions;
}

bool DataLoader::fits(const LoaderPosition& at) const {
    return (options_.pad ? 1 : options_.shape.global_positions()) < shards_[at.shard].tokens() - at.position;
}

void DataLoader::settle(LoaderPosition& at) const {
    while (!fits(at)) {
        at.position = 0;
        if (++at.shard == shards_.size()) {
            at.shard = 0;
            ++at.epoch;
        }
    }
}

LoaderPosition DataLoader::fill(Batch& batch, LoaderPosition at) const {
    batch.from = at;
    const LoaderPosition after = options_.shuffle_seed ? fill_shuffled(batch, at) : fill_sequential(batch, at);
    if (options_.mask_document_start) ignore_document_starts(batch, shards_.vocabulary().end_of_text);
    batch.valid_targets = options_.shape.positions();
    if (options_.mask_document_start || options_.pad)
        batch.valid_targets -= std::count(batch.targets.begin(), batch.targets.end(), kernels::kIgnoreTarget);
    return after;
}

LoaderPosition DataLoader::fill_sequential(Batch& batch, LoaderPosition at) const {
    const BatchShape& shape = options_.shape;
    const Shard& shard = shards_[at.shard];
    const std::int64_t first = at.position + shape.rank * shape.positions();
    fill_row(shard, first, std::clamp<std::int64_t>(shard.tokens() - 1 - first, 0, shape.positions()), batch.inputs,
             batch.targets);
    at.position += shape.global_positions();
    settle(at);
    return at;
}

LoaderPosition DataLoader::fill_shuffled(Batch& batch, LoaderPosition at) const {
    const auto [micro_batch, seq_len, rank, world] = options_.shape;
    const std::int64_t sequences = sequences_->total();
    const Permutation this_epoch(sequences, *options_.shuffle_seed, std::uint64_t(at.epoch));
    const Permutation next_epoch(sequences, *options_.shuffle_seed, std::uint64_t(at.epoch + 1));
    for (std::int64_t row = 0; row < micro_batch; ++row) {
        // Below 2 * sequences, for a micro-step is no longer than an epoch.
        const std::int64_t position = at.position + std::int64_t(rank) * micro_batch + row;
        const std::int64_t shuffled = position < sequences ? this_epoch(position) : next_epoch(position - sequences);
        const auto [shard, sequence] = sequences_->find(shuffled);
        const auto begin = std::size_t(row * seq_len), length = std::size_t(seq_len);
        const std::int64_t first = sequence * seq_len,
                           valid = std::min<std::int64_t>(seq_len, shards_[shard].tokens() - 1 - first);
        fill_row(shards_[shard], first, valid, std::span(batch.inputs).subspan(begin, length),
                 std::span(batch.targets).subspan(begin, length));
    }
    at.position += options_.shape.global_rows();
    if (at.position >= sequences) {
        at.position -= sequences;
        ++at.epoch;
    }
    return at;
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

DataLoaderState DataLoader::state() const {
    return {.next = next_, .shuffled = options_.shuffle_seed.has_value(), .padded = options_.pad,
            .seed = options_.shuffle_seed.value_or(0), .sequences = sequences_ ? sequences_->total() : 0,
            .shards = shards_.size(), .tokens = shards_.tokens()};
}

void DataLoader::restore(const DataLoaderState& state) {
    const DataLoaderState own = this->state();
    const auto order = [](const DataLoaderState& s) { return s.shuffled ? "shuffled" : "sequential"; };
    require(state.shards == own.shards, "number of training shards", own.shards,
            std::to_string(state.shards) + " as in the state to go on from", "name the same data");
    require(state.tokens == own.tokens, "number of training tokens", own.tokens,
            std::to_string(state.tokens) + " as in the state to go on from", "name the same data");
    require(state.shuffled == own.shuffled, "order of the training data", order(own),
            std::string(order(state)) + " as in the state to go on from");
    const auto ends = [](const DataLoaderState& s) { return s.padded ? "padded" : "dropped"; };
    require(state.padded == own.padded, "ends of the training shards", ends(own),
            std::string(ends(state)) + " as in the state to go on from");
    require(state.seed == own.seed, "seed of the training data's order", own.seed,
            std::to_string(state.seed) + " as in the state to go on from");
    require(state.sequences == own.sequences, "number of training sequences", own.sequences,
            std::to_string(state.sequences) + " as in the state to go on from", "use the same sequence length");
    const LoaderPosition& at = state.next;
    const std::int64_t shards = state.shuffled ? 1 : shards_.size();
    require(at.epoch >= 0, "epoch of the state to go on from", at.epoch, "at least 0");
    require(at.shard >= 0 && at.shard < shards, "shard of the state to go on from", at.shard,
            "0 to " + std::to_string(shards - 1));
    const std::int64_t end = state.shuffled ? own.sequences : shards_[at.shard].tokens();
    require(at.position >= 0 && at.position < end, "position of the state to go on from", at.position,
            "0 to " + std::to_string(end - 1));

    if (prefetch_) {
        try {
            prefetch_->wait();
        } catch (const Error&) {
            // What was wrong with the batch that nobody wants any more is nobody's concern either.
        }
    }
    next_ = at;
    if (!state.shuffled) settle(next_);
}

std::int64_t DataLoader::steps_in(std::int64_t epochs) const {
    const std::int64_t per_epoch = sequences_ ? sequences_->total() : micro_steps_per_epoch_;
    const std::int64_t per_step = (sequences_ ? options_.shape.global_rows() : 1) * options_.micro_batches;
    require(epochs >= 0 && epochs <= std::numeric_limits<std::int64_t>::max() / per_epoch, "number of epochs", epochs,
            "at least 0, and few enough to count");
    return epochs * per_epoch / per_step;
}

}  // namespace llmc
