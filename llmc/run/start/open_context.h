// open_context.h - opens the device, the libraries and the communication backend that the options select
#pragma once
#include <memory>

#include "llmc/model/context.h"
#include "llmc/run/options/options.h"

namespace llmc {

// Places this rank (comm/placement.h) and opens its device. Every rank calls it; if one rank fails, all throw a
// SharedError. `communicator`, which the context shares, uses NCCL from here on if that backend is selected.
Context open_context(const Options& options, std::shared_ptr<Communicator>& communicator);

}  // namespace llmc
