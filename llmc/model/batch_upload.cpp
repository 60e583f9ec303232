// batch_upload.cpp - copies a micro-batch to page-locked memory and from there to the device
#include "llmc/model/batch_upload.h"

#include <algorithm>

#include "kernels/documents.h"
#include "kernels/embedding.h"

namespace llmc {

BatchUpload::BatchUpload(const ModelSetup& setup, Context& context)
    : largest_(setup.shape), vocabulary_(setup.config.vocabulary), end_of_text_(setup.end_of_text), context_(context),
      device_(device_bytes(setup) / sizeof(int)) {
    for (Staging& staging : staging_) staging.memory = device::PinnedMemory(device_bytes(setup));
}

MicroBatch BatchUpload::upload(std::span<const int> tokens, std::span<const int> targets, MicroBatchShape shape,
                               Purpose purpose) {
    const std::size_t rows = shape.rows();
    require(rows <= largest_.rows() && tokens.size() == rows && targets.size() == rows, "the tokens of a micro-batch",
            tokens.size(), std::to_string(rows) + " tokens and targets, at most " + std::to_string(largest_.rows()));
    Staging& staging = staging_[std::size_t(slot_)];
    slot_ ^= 1;
    staging.read.sync();
    int* const host = reinterpret_cast<int*>(staging.memory.data());
    std::size_t used = 0;
    const auto add = [&](std::span<const int> values) {
        std::copy(values.begin(), values.end(), host + used);
        const auto on_device = device_.span().subspan(used, values.size());
        used += values.size();
        return std::span<const int>(on_device);
    };
    MicroBatch batch{.tokens = add(tokens), .targets = add(targets), .sorted = {}, .shape = shape};
    const auto add_sorted = [&](std::span<const int> ids, int count) {
        const auto sorted = kernels::rows_by_token(ids, count);
        return kernels::RowsByToken<std::span<const int>>{add(sorted.token), add(sorted.start), add(sorted.row),
                                                          sorted.chunks};
    };
    if (purpose == Purpose::training) batch.sorted = add_sorted(tokens, vocabulary_);
    std::vector<int> starts;
    if (end_of_text_) starts = kernels::document_starts(tokens, shape.seq_len, *end_of_text_);
    if (std::ranges::any_of(starts, [](int start) { return start > 0; })) {  // otherwise each row is one document
        batch.starts = add(starts);
        for (std::size_t i = 0; i < rows; ++i) starts[i] = int(i % std::size_t(shape.seq_len)) - starts[i];
        if (purpose == Purpose::training) batch.by_position = add_sorted(starts, shape.seq_len);
    }
    device::copy_to_device(device_.span().data(), host, used * sizeof(int), context_.stream);
    staging.read.record(context_.stream);
    return batch;
}

}  // namespace llmc
