// run_data.cpp - opens shards and HellaSwag, and divides a step into micro-batches
#include "llmc/run/start/run_data.h"

#include <limits>

#include "kernels/base/error.h"
#include "llmc/base/counted.h"
#include "llmc/run/start/shared_facts.h"

namespace llmc {
namespace {

RunData open_shards(const Options& o) {
    RunData data;
    if (!o.train_data.empty()) data.train = std::make_unique<ShardSet>(o.train_data);
    if (!o.val_data.empty()) data.val = std::make_unique<ShardSet>(o.val_data);
    if (data.train && data.val && data.train->vocabulary() != data.val->vocabulary())
        fail("the vocabulary of " + o.val_data, describe(data.val->vocabulary()),
             "that of " + o.train_data + ", " + describe(data.train->vocabulary()),
             "tokenize both with the same tokenizer");
    data.train_facts = shard_facts("training", data.train.get());
    data.val_facts = shard_facts("validation", data.val.get());
    return data;
}

HellaSwagBatches open_hellaswag(const Options& o, const RunData& data) {
    HellaSwagFile file(o.hellaswag);
    const bool shards = data.train || data.val;
    if (shards && file.vocabulary() != data.vocabulary())
        fail("the vocabulary of " + o.hellaswag, describe(file.vocabulary()),
             "that of the shards, " + describe(data.vocabulary()), "tokenize both with the same tokenizer");
    return {std::move(file), int(o.micro_batch), int(o.seq_len)};
}

// Whole micro-batches on every rank.
std::int64_t tokens_of_step(const Options& o, const BatchShape& batch) {
    const std::int64_t at_once = batch.global_positions();
    const std::int64_t tokens = o.total_batch_tokens > 0 ? o.total_batch_tokens : at_once;
    const std::int64_t below = tokens / at_once * at_once;
    if (tokens % at_once != 0)
        fail("--total-batch-tokens", tokens,
             "a multiple of --micro-batch * --seq-len * ranks = " + std::to_string(o.micro_batch) + " * " +
                 std::to_string(o.seq_len) + " * " + std::to_string(batch.world) + " = " + std::to_string(at_once),
             tokens < at_once
                 ? "the nearest is " + std::to_string(at_once)
                 : "the nearest are " + std::to_string(below) + " and " + std::to_string(below + at_once));
    require(tokens / at_once <= std::numeric_limits<int>::max(), "--total-batch-tokens", tokens,
            "at most 2147483647 micro-batches of " + counted(at_once, "token"));
    return tokens;
}

}  // namespace

RunData open_run_data(const Options& o, const Communicator& ranks) {
    RunData data = open_shards(o);
    data.batch = {.micro_batch = int(o.micro_batch), .seq_len = int(o.seq_len), .rank = ranks.rank(),
                  .world = ranks.size()};
    data.step_tokens = tokens_of_step(o, data.batch);
    data.micro_batches = int(data.step_tokens / data.batch.global_positions());
    if (!o.hellaswag.empty()) data.hellaswag = open_hellaswag(o, data);
    data.hellaswag_facts = hellaswag_facts(data.hellaswag ? &data.hellaswag->file() : nullptr);
    if (!o.eval_only)
        data.loader = std::make_unique<DataLoader>(
            *data.train,
            DataLoaderOptions{.shape = data.batch, .micro_batches = data.micro_batches,
                              .shuffle_seed = o.shuffle ? std::optional(std::uint64_t(o.seed)) : std::nullopt,
                              .mask_document_start = o.mask_document_start, .pad = o.pad_last});
    if (data.val) data.validation.emplace(*data.val, o.val_tokens, data.batch, o.mask_document_start);
    return data;
}

}  // namespace llmc
