// communicator_mpi_absent.cpp - stands in for communicator_mpi.cpp in a build without MPI
#include "kernels/base/error.h"
#include "llmc/comm/communicator.h"

namespace llmc {

std::string why_no_mpi() { return "MPI: no mpi.h was found when this program was built"; }

std::unique_ptr<Communicator> open_mpi(const Launch& launch, std::int64_t, int) {
    fail("the number of processes (" + launch.variable + ")", launch.processes, "1: this build has no MPI",
         "install libopenmpi-dev or set MPI_ROOT, and build again; or start one process, without a launcher");
}

}  // namespace llmc
