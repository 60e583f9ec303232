// placement.h - the cores and the GPU of a rank, and the transport of its tensors (NCCL or MPI)
//
// The cores of a machine are divided among its ranks into contiguous sets of whole cores, so that ranks do not migrate
// and do not share cores: all hardware threads of a core belong to one rank. The launcher may have bound the ranks
// already. By default, mpirun of Open MPI binds one or two processes to one core each: this is undone (with Open MPI 5
// only on the machine of mpirun). A binding that the user chose (mpirun --bind-to, srun --cpu-bind, taskset) stays if
// no two ranks overlap; otherwise the union of the cores is divided.
#pragma once
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "llmc/base/names.h"
#include "llmc/base/option.h"
#include "llmc/comm/communicator.h"

namespace llmc {

// The hardware threads of one core, by Linux CPU number.
using Core = std::vector<int>;

// The cores of `threads`, with only those threads; ordered by package, then by number.
std::vector<Core> cores_of(const std::vector<int>& threads);
// The hardware threads for one rank of a machine: neighbouring cores; the counts of any two ranks differ by at most one
// core. With more ranks than cores some ranks share one.
std::vector<int> share_of_cores(const std::vector<Core>& cores, int local_rank, int local_ranks);
// The same, given the hardware threads that each rank of the machine may use, in rank order. If no two ranks overlap,
// each keeps its own.
std::vector<int> share_of_threads(const std::vector<std::vector<int>>& usable, int local_rank);

// The number of a rank's GPU, out of `gpus`, counting from --device.
int gpu_of_rank(int device, int local_rank, int gpus);

// The value of --comm; auto: NCCL if every rank has its own GPU and this build has NCCL.
enum class Transport { automatic, nccl, mpi };
inline constexpr Named<Transport> kTransports[] = {{"auto", Transport::automatic}, {"nccl", Transport::nccl},
                                                   {"mpi", Transport::mpi}};
// Whether tensors are sent over NCCL. `gpus`: an identifier of each rank's GPU, empty on CPUs; `lacks`: see
// why_no_nccl(). Throws Error if ranks share a GPU, which only --comm mpi allows, or NCCL is requested and not
// available.
bool uses_nccl(Transport requested, const std::vector<std::string>& gpus, const std::string& lacks);

struct PlacementSettings {
    Transport comm = Transport::automatic;
    std::int64_t threads = 0, device = 0;  // 0: see place_rank(); the first GPU
};
void add_options(OptionList& list, PlacementSettings& settings);

struct Placement {
    device::Info device;
    bool nccl;
};
// Binds this process to cores, opens its device and selects the transport. Every rank calls it; an error on one rank is
// a SharedError on all. `threads` 0: the rank's hardware threads, within its part of the control group's CPU quota.
Placement place_rank(Communicator& communicator, const PlacementSettings& settings);

}  // namespace llmc
