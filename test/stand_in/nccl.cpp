// nccl.cpp - stand-in for libnccl: ranks are processes of one machine, whose devices exchange data through shared
// memory
//
// A launch is one work item of the device: a call outside of a group, or all calls of a group on one stream.
//   post   once all ranks have taken this rank's previous launch: copies the launch's operations and the data that they
//          send to this rank's area
//   take   once all peers of the launch have posted theirs: compares the operations and writes the results
// Sums are rank 0 + rank 1 + ..., in float for bf16, rounded once. A launch matches one launch of each peer: two sends
// of one group do not match two separate receives, which NCCL would allow.
// Calls that NCCL forbids, or that would hang, end the program with the operations of both ranks, if necessary after
// kMostWait.
//
// The shared memory is an unnamed file, which exists until the last process closes it: ncclGetUniqueId creates it, the
// other ranks open it as /proc/PID/fd/FD.
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "test/stand_in/nccl_exchange.h"

using namespace stand_in::nccl;
using stand_in::stop;
using Clock = std::chrono::steady_clock;

struct ncclComm {
    Shared* shared;
    Place place;
    int rank, size;
    std::atomic<std::uint64_t> launches = 0;
};

namespace {

// State of ncclGroupStart and ncclGroupEnd, per thread.
struct Group {
    int depth = 0;
    ncclResult_t failed = ncclSuccess;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    std::vector<Operation> operations;
};
thread_local Group group;

thread_local std::string last_error;

// Stores the message for ncclGetLastError and marks the current group as failed.
ncclResult_t fail(ncclResult_t status, const std::string& why) {
    last_error = why;
    if (group.depth > 0) group.failed = status;
    return status;
}
ncclResult_t requested_failure(ncclResult_t status) { return fail(status, "the stand-in for NCCL fails on request"); }

void enqueue(ncclComm_t comm, cudaStream_t stream, std::span<const Operation> operations) {
    if (operations.size() > kMostOperations) stop("a group has more than 2048 operations");
    const auto launch = std::make_unique<Launch>();
    launch->place = comm->place;
    launch->rank = comm->rank;
    launch->size = comm->size;
    launch->number = ++comm->launches;
    std::vector<stand_in::Range> ranges;
    std::map<std::pair<Kind, int>, int> seen;
    std::size_t at = 0;
    for (const Operation& op : operations) {
        Operation& added = launch->operation[launch->operations++] = op;
        added.ordinal = op.collective() ? seen[{Kind::broadcast, 0}]++ : seen[{op.kind, op.root}]++;
        added.at = at;
        const std::size_t read = op.bytes_read(comm->rank, comm->size);
        const std::size_t written = op.bytes_written(comm->rank, comm->size);
        at += (read + 63) / 64 * 64;
        if (read > 0) ranges.push_back({op.in, read, false});
        if (written > 0) ranges.push_back({op.out, written, true});
    }
    if (at > kAreaBytes) stop(describe(operations) + ": more than 256 MiB, the stand-in's limit per launch");
    const std::span payload(reinterpret_cast<const std::byte*>(launch.get()),
                            offsetof(Launch, operation) + operations.size() * sizeof(Operation));
    stand_in::enqueue(stream, "NCCL's " + describe(operations), exchange, payload, ranges);
}

ncclResult_t call(ncclComm_t comm, cudaStream_t stream, const Operation& op, ncclRedOp_t reduction = ncclSum) {
    if (op.root < 0 || op.root >= comm->size)
        return fail(ncclInvalidArgument, "no rank " + std::to_string(op.root) + " among " + std::to_string(comm->size));
    if ((op.type != ncclFloat32 && op.type != ncclBfloat16 && op.type != ncclUint8) || reduction != ncclSum)
        stop("the stand-in for NCCL supports sums of float32, bfloat16 and uint8 only");
    if (op.count == 0) return ncclSuccess;
    if (group.depth == 0) {
        enqueue(comm, stream, std::span(&op, 1));
        return ncclSuccess;
    }
    // ncclGroupStart: no operation starts before ncclGroupEnd
    if (!group.operations.empty() && (comm != group.comm || stream != group.stream))
        stop("the stand-in for NCCL supports groups on one stream of one communicator only");
    group.comm = comm;
    group.stream = stream;
    group.operations.push_back(op);
    return ncclSuccess;
}

// `status`: result of ncclGroupEnd itself.
ncclResult_t end_group(ncclResult_t status) {
    if (group.depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--group.depth > 0) return status;
    const Group ended = std::exchange(group, {});
    if (ended.failed != ncclSuccess) return ended.failed;  // none of its operations starts
    if (!ended.operations.empty()) enqueue(ended.comm, ended.stream, ended.operations);
    return ncclSuccess;
}

// Waits for the other ranks in ncclCommInitRank.
void wait_for_ranks(const Shared& shared, int size) {
    const auto until = Clock::now() + 2 * kMostWait;
    for (const Rank& rank : std::span(shared.rank, size))
        while (rank.state == State::absent) {
            if (Clock::now() > until)
                stop("ncclCommInitRank: rank " + std::to_string(&rank - shared.rank) + " stays away");
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
}

// Common part of ncclCommDestroy and ncclCommAbort: frees the communicator.
ncclResult_t leave(const char* function, ncclComm_t comm, State state) {
    const bool fails = stand_in::failure_injected(function);
    comm->shared->rank[comm->rank].state = state;
    delete comm;
    return fails ? requested_failure(ncclUnhandledCudaError) : ncclSuccess;
}

const std::byte* bytes(const void* buffer) { return static_cast<const std::byte*>(buffer); }
std::byte* bytes(void* buffer) { return static_cast<std::byte*>(buffer); }

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "an error of the stand-in for NCCL"; }
const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

// ncclGetUniqueId: called once per communicator; all ranks pass the identifier to ncclCommInitRank.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    STAND_IN_MAY_FAIL(requested_failure(ncclSystemError));
    std::random_device random;
    const std::uint64_t identity = std::uint64_t(random()) << 32 | random();
    const Place place{getpid(), memfd_create("stand_in_nccl", MFD_CLOEXEC), identity};
    if (place.file < 0 || ftruncate(place.file, sizeof(Shared) + kMostRanks * kAreaBytes) != 0 ||
        pwrite(place.file, &identity, sizeof identity, offsetof(Shared, identity)) != sizeof identity)
        return fail(ncclSystemError, "no shared memory: " + std::string(strerror(errno)));
    *id = {};
    std::memcpy(id->internal, &place, sizeof place);
    return ncclSuccess;
}

// ncclCommInitRank: creates a communicator on the current device; returns once all ranks have called it.
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
    STAND_IN_MAY_FAIL(requested_failure(ncclSystemError));
    if (size < 1 || rank < 0 || rank >= size || size > kMostRanks)
        stop("ncclCommInitRank: rank " + std::to_string(rank) + " of " + std::to_string(size) + ", of at most 16");
    Place place;
    std::memcpy(&place, id.internal, sizeof place);
    Shared* const shared = open_shared(place, size);
    if (!shared) return fail(ncclRemoteError, "the process that created the identifier has ended");
    Rank& mine = shared->rank[rank];
    State state = State::absent;
    if (!mine.state.compare_exchange_strong(state, State::joined)) stop("ncclCommInitRank: a rank joins twice");
    mine.host = getpid();
    wait_for_ranks(*shared, size);
    *comm = new ncclComm{shared, place, rank, size};
    return ncclSuccess;
}

// ncclCommDestroy: frees this rank's resources of the communicator.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    return leave(__func__, comm, State::destroyed);
}

// ncclCommAbort: the same, and aborts operations that are still running.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    return leave(__func__, comm, State::aborted);
}

// ncclCommGetAsyncError: stores errors of running operations in `error`; the call itself succeeds.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    STAND_IN_MAY_FAIL(requested_failure(ncclSystemError));
    *error = ncclSuccess;
    for (int rank = 0; rank < comm->size; ++rank) {
        const Rank& other = comm->shared->rank[rank];
        // ncclRemoteError: for example, a remote process exited too early
        if (other.state == State::aborted || (other.state == State::joined && other.gone()))
            *error = fail(ncclRemoteError, "rank " + std::to_string(rank) +
                                               (other.state == State::aborted ? " aborted" : "'s process has ended"));
    }
    return ncclSuccess;
}

// ncclMemAlloc: memory that can be registered. It may be larger than requested; here it is not.
ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
    STAND_IN_MAY_FAIL(requested_failure(ncclUnhandledCudaError));
    return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : fail(ncclUnhandledCudaError, "out of memory");
}

// Whether it waits for work is not documented.
ncclResult_t ncclMemFree(void* memory) {
    const bool fails = stand_in::failure_injected(__func__);
    cudaFree(memory);
    return fails ? requested_failure(ncclUnhandledCudaError) : ncclSuccess;
}

// Registered memory is treated like any other.
ncclResult_t ncclCommWindowRegister(ncclComm_t, void* memory, size_t, ncclWindow_t* window, int) {
    STAND_IN_MAY_FAIL(requested_failure(ncclUnhandledCudaError));
    *window = reinterpret_cast<ncclWindow_t>(memory);
    return ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) {
    return stand_in::failure_injected(__func__) ? requested_failure(ncclUnhandledCudaError) : ncclSuccess;
}

// ncclGroupStart: calls until ncclGroupEnd form one operation, which starts no earlier.
ncclResult_t ncclGroupStart() {
    STAND_IN_MAY_FAIL(requested_failure(ncclSystemError));
    ++group.depth;
    return ncclSuccess;
}

// ncclGroupEnd: the operation is enqueued on its streams when this returns, but need not be done.
ncclResult_t ncclGroupEnd() {
    STAND_IN_MAY_FAIL(end_group(requested_failure(ncclUnhandledCudaError)));
    return end_group(ncclSuccess);
}

// ncclReduceScatter: the send buffer has size * count elements; block i of the sum goes to rank i.
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                               ncclComm_t comm, cudaStream_t stream) {
    STAND_IN_MAY_FAIL(requested_failure(ncclUnhandledCudaError));
    return call(comm, stream, {Kind::reduce_scatter, type, 0, count, bytes(in), bytes(out)}, reduction);
}

// ncclAllGather: the receive buffer has size * count elements; block i is from rank i.
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    STAND_IN_MAY_FAIL(requested_failure(ncclUnhandledCudaError));
    return call(comm, stream, {Kind::all_gather, type, 0, count, bytes(in), bytes(out)});
}

// ncclBroadcast: the send buffer is used only on the root.
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    STAND_IN_MAY_FAIL(requested_failure(ncclUnhandledCudaError));
    return call(comm, stream, {Kind::broadcast, type, root, count, bytes(in), bytes(out)});
}

// ncclReduce: the receive buffer is used only on the root, and may be null elsewhere.
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t reduction, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    STAND_IN_MAY_FAIL(requested_failure(ncclUnhandledCudaError));
    return call(comm, stream, {Kind::reduce, type, root, count, bytes(in), bytes(out)}, reduction);
}

// ncclSend, ncclRecv: the device waits for the peer; calls that depend on each other must be in one group.
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    STAND_IN_MAY_FAIL(requested_failure(ncclUnhandledCudaError));
    return call(comm, stream, {Kind::send, type, peer, count, bytes(in), nullptr});
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    STAND_IN_MAY_FAIL(requested_failure(ncclUnhandledCudaError));
    return call(comm, stream, {Kind::receive, type, peer, count, nullptr, bytes(out)});
}

}  // extern "C"
