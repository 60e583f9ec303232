// open_context.cpp - from options to device, stream and libraries
#include "llmc/run/start/open_context.h"

#include "llmc/comm/placement.h"

namespace llmc {

Context open_context(const Options& options, std::shared_ptr<Communicator>& communicator) {
    const auto bf16 = value_by_name("--bf16-arithmetic", options.bf16_arithmetic, kBf16Arithmetics);
    const auto attention = value_by_name("--attention", options.attention, kernels::kAttentionMethods);
    const auto transport = value_by_name("--comm", options.comm, kTransports);
    Placement placement = place_rank(*communicator, int(options.threads), int(options.device), transport);
    if (placement.nccl) communicator = over_nccl(communicator);
    auto tuned = std::make_unique<kernels::TunedAlgorithms>();
    kernels::Matmul matmul({.tf32 = options.tf32, .bf16 = bf16, .tuned = tuned.get()});
    return {std::move(placement.device), device::Stream(), std::move(matmul),
            kernels::Attention({.method = attention, .deterministic = options.deterministic,
                                .tuned = tuned.get()}),
            communicator, std::move(tuned)};
}

}  // namespace llmc
