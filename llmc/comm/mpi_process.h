// mpi_process.h - MPI initialization and finalization, status texts, and the state that the communicators of a process
// share; only for communicator_mpi.cpp
#pragma once
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "kernels/device/checked.h"
#include "kernels/device/memory.h"
#include "llmc/base/process_start.h"
#include "llmc/comm/comm_stream.h"
#include "llmc/comm/communicator.h"

namespace llmc {

inline std::string fault_of(int status) {
    if (status == MPI_SUCCESS) return {};
    int rank = -1, length = 0;
    char text[MPI_MAX_ERROR_STRING] = {};
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Error_string(status, text, &length);
    return "on rank " + std::to_string(rank) + ": " + text;
}

// MPI, which it initializes and finalizes, and the state shared by the communicators of a process: that of the run and
// its parts.
struct MpiProcess {
    explicit MpiProcess(const Launch& launch) {
        // Over TCP, Open MPI writes a long message to the socket in one piece, followed by the reply that lets the
        // other rank send its own: the two directions take turns. Without PUT both directions flow at once, and an
        // all-reduce takes as little as half the time (dev/results/2026-11-23-onebit-links.md). A value that the user
        // has set stays; other MPIs ignore the variable.
        setenv("OMPI_MCA_btl_tcp_flags", "send", 0);
        int provided = 0;
        CHECKED(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
        ignore_signals_again();
        CHECKED(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
        CHECKED(MPI_Comm_size(MPI_COMM_WORLD, &size));
        CHECKED(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
        if (size != launch.processes || provided < MPI_THREAD_SERIALIZED) MPI_Finalize();
        require(size == launch.processes, "the number of ranks that MPI sees", size,
                std::to_string(launch.processes) + ", as " + launch.variable + " says",
                "start the program with the mpirun of the MPI that it was built with, or under Slurm with "
                "srun --mpi=pmix");
        require(provided >= MPI_THREAD_SERIALIZED, "the thread level of MPI", provided, "MPI_THREAD_SERIALIZED or more",
                "use an MPI that provides it");
        // Duplicates inherit MPI_ERRORS_RETURN.
        CHECKED(MPI_Comm_dup(MPI_COMM_WORLD, &control));
        CHECKED(MPI_Comm_dup(MPI_COMM_WORLD, &payload));
        MPI_Comm machine;
        CHECKED(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine));
        CHECKED(MPI_Comm_rank(machine, &local_rank));
        node = rank;
        CHECKED(MPI_Bcast(&node, 1, MPI_INT, 0, machine));
        CHECKED(MPI_Comm_free(&machine));
    }
    ~MpiProcess() {
        stream.reset();
        if (orderly) MPI_Finalize();
        // rank 0 prints the reason before the launcher notices the exit of another rank and ends all
        else if (rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    MpiProcess(const MpiProcess&) = delete;
    MpiProcess& operator=(const MpiProcess&) = delete;

    int rank = 0, size = 1, local_rank = 0, node = 0;  // node: the machine's first rank
    MPI_Comm control = MPI_COMM_NULL, payload = MPI_COMM_NULL;
    // MPI_Finalize waits for all ranks: a failed rank exits without it, and the launcher ends the others
    bool orderly = true;
    std::int64_t chunk_bytes = 0;  // a multiple of kChunkMultiple
    std::mutex mpi{};              // held during one non-blocking call
    std::atomic<bool> leaving = false, warned = false;
    device::Memory gathered{};  // (ranks, chunk): what this rank sums
    // (2 * ranks, chunk), if the host cannot access device memory: sent data, then received data
    device::PinnedMemory pinned{};
    std::optional<CommStream> stream{};  // created with the first group, after the device is selected

    void open_stream() {
        if (stream) return;
        gathered = device::Memory(chunk_bytes * size);
        if (!device::memory_is_host_memory()) pinned = device::PinnedMemory(2 * chunk_bytes * size);
        stream.emplace();
    }
};

}  // namespace llmc
