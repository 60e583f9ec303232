// context.h - the objects that the parts of a run share: device, compute stream, libraries, communicator
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
    std::shared_ptr<Communicator> communicator = alone();
    std::unique_ptr<kernels::TunedAlgorithms> tuned{};  // of matmul and attention; null: the defaults
};

}  // namespace llmc
