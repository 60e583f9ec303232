// placement.h - which cores and which GPU a rank works with, and what its tensors travel over
//
// The cores of a machine are divided among its ranks, whole ones and side by side, so that ranks do not move about and
// take each other's: the hardware threads of a core go to one rank. The launcher may have bound them already. mpirun of
// Open MPI 4 binds one or two processes to one core each unless it is told otherwise: that is undone. Cores that
// somebody chose (mpirun --bind-to, srun --cpu-bind, taskset) stay as they are if they are each rank's own, else what
// they have together is divided.
#pragma once
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "llmc/base/names.h"
#include "llmc/comm/communicator.h"

namespace llmc {

// The hardware threads of one core, by the kernel's numbers.
using Core = std::vector<int>;

// The cores that `threads` belong to, with only those threads; by package, then by number.
std::vector<Core> cores_of(const std::vector<int>& threads);
// The hardware threads for one of the ranks of a machine: neighbouring cores, as many for each rank to within one. With
// more ranks than cores some get the same one.
std::vector<int> share_of_cores(const std::vector<Core>& cores, int local_rank, int local_ranks);
// The same when the ranks of the machine, in their order, may use these hardware threads: rank by rank as given where
// no two overlap.
std::vector<int> share_of_threads(const std::vector<std::vector<int>>& usable, int local_rank);

// Which of `gpus` a rank takes, counting on from --device.
int gpu_of_rank(int device, int local_rank, int gpus);

// What --comm asks for; auto: NCCL where every rank has a GPU of its own and this build has NCCL.
enum class Transport { automatic, nccl, mpi };
inline constexpr Named<Transport> kTransports[] = {{"auto", Transport::automatic}, {"nccl", Transport::nccl},
                                                   {"mpi", Transport::mpi}};
// Whether tensors travel over NCCL. `gpus`: an identifier of each rank's GPU, all of them empty on CPUs; `lacks`: see
// nccl_lacks(). Throws Error where ranks share a GPU, which only --comm mpi allows, or NCCL was asked for in vain.
bool over_nccl_by(Transport asked, const std::vector<std::string>& gpus, const std::string& lacks);

struct Placement {
    device::Info device;
    bool nccl;
};
// Binds this process, opens its device and decides. Every rank calls it; what one of them refuses is a SharedError on
// all. `threads` 0: as many as the rank has hardware threads.
Placement place_rank(Communicator& communicator, int threads, int device, Transport asked);

}  // namespace llmc
