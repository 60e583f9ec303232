// open_context.h - the device, the libraries and the transport that the options choose
#pragma once
#include <memory>

#include "llmc/model/context.h"
#include "llmc/run/options.h"

namespace llmc {

// Places this rank (comm/placement.h) and opens its device. Every rank calls it; what one of them refuses is a
// SharedError on all. `communicator`, which the context shares, goes over NCCL from here on where that was decided.
Context open_context(const Options& options, std::shared_ptr<Communicator>& communicator);

}  // namespace llmc
