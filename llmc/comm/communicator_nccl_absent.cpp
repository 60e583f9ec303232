// communicator_nccl_absent.cpp - stands in for communicator_nccl.cpp in a build for CPUs, or without NCCL
#include "kernels/base/error.h"
#include "llmc/comm/communicator.h"

namespace llmc {

std::string why_no_nccl() { return "NCCL: this is a build for CPUs, or no nccl.h was found when it was built"; }

std::unique_ptr<Communicator> over_nccl(std::shared_ptr<Communicator>) {
    throw Error("this build has no NCCL: it is one for CPUs, or no nccl.h was found; "
                "leave --comm nccl out, or build with DEVICE=cuda and NCCL_ROOT set");
}

}  // namespace llmc
