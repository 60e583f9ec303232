// batch_upload.h - copies micro-batches to the device; the host prepares one while the device processes another
#pragma once
#include <array>

#include "kernels/device/memory.h"
#include "llmc/model/model.h"

namespace llmc {

// The use of a micro-batch: training also needs the token buckets.
enum class Purpose { training, evaluation };

class BatchUpload {
public:
    // For micro-batches of at most setup.shape. The context must outlive it.
    BatchUpload(const ModelSetup& setup, Context& context);

    // Copies tokens and targets (shape.rows() of each), for training the token buckets, and what documents need, in one
    // transfer on the context's stream, after all kernels enqueued before: 1.3 MB for 65,536 tokens, 2.4 with
    // documents. The result is valid on that stream until the next call; the caller may reuse `tokens` and `targets`
    // immediately.
    MicroBatch upload(std::span<const int> tokens, std::span<const int> targets, MicroBatchShape shape,
                      Purpose purpose);

    static std::size_t device_bytes(const ModelSetup& setup) {
        return (setup.end_of_text ? 9 * setup.shape.rows() + 2 : 5 * setup.shape.rows() + 1) * sizeof(int);
    }

private:
    // The host buffer of a transfer. There are two, so that one can be filled while the other is read.
    struct Staging {
        device::PinnedMemory memory;
        device::Event read;
    };

    MicroBatchShape largest_;
    int vocabulary_;
    std::optional<int> end_of_text_;
    Context& context_;
    device::Array<int> device_;
    std::array<Staging, 2> staging_;
    int slot_ = 0;
};

}  // namespace llmc
