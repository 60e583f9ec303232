// context.h - the objects that the parts of a run share: device, compute stream, libraries, communicators
#pragma once
#include <memory>

#include "kernels/attention/attention.h"
#include "kernels/device/device.h"
#include "kernels/device/stream.h"
#include "kernels/matmul/matmul.h"
#include "kernels/tuning/tuned_algorithms.h"
#include "llmc/comm/communicator.h"

namespace llmc {

// Owned by main().
struct Context {
    device::Info device;
    device::Stream stream;
    kernels::Matmul matmul;
    kernels::Attention attention{};
    // All ranks of the run, for what they report, agree on and save; those that make a training step together; and
    // those with the same place in their workers, which make outer steps together.
    std::shared_ptr<Communicator> world = alone(), worker = world, across = world;
    std::unique_ptr<kernels::TunedAlgorithms> tuned{};  // of matmul and attention; null: the defaults
};

}  // namespace llmc
