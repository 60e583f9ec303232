// batch_upload.cpp - copies a micro-batch to page-locked memory and from there to the device
#include "llmc/model/batch_upload.h"

#include "kernels/embedding.h"

namespace llmc {

BatchUpload::BatchUpload(MicroBatchShape shape, int vocabulary, Context& context)
    : largest_(shape), vocabulary_(vocabulary), context_(context), device_(device_bytes(shape) / sizeof(int)) {
    for (Staging& staging : staging_) staging.memory = device::PinnedMemory(device_bytes(shape));
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
    if (purpose == Purpose::training) {
        const auto sorted = kernels::rows_by_token(tokens, vocabulary_);
        batch.sorted = {add(sorted.token), add(sorted.start), add(sorted.row), sorted.chunks};
    }
    device::copy_to_device(device_.span().data(), host, used * sizeof(int), context_.stream);
    staging.read.record(context_.stream);
    return batch;
}

}  // namespace llmc
