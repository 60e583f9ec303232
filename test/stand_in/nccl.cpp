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
// STAND_IN_NCCL_SECONDS.
//
// The shared memory is an unnamed file, which exists until the last process closes it: ncclGetUniqueId creates it, the
// other ranks open it as /proc/PID/fd/FD.
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
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
struct ncclWindow_vidmem {
    ncclComm_t comm;
    const void* memory;
};

namespace {

struct Call {
    ncclComm_t comm;
    cudaStream_t stream;
    Operation op;
};
// State of ncclGroupStart and ncclGroupEnd, per thread.
struct Group {
    int depth = 0;
    ncclResult_t failed = ncclSuccess;
    std::vector<Call> calls;
};
thread_local Group group;

std::mutex last_error_mutex;  // guards `last_error`, which all threads share
std::string last_error;

// Stores the message for ncclGetLastError and marks the current group as failed.
ncclResult_t fail(ncclResult_t status, const std::string& why) {
    const std::lock_guard lock(last_error_mutex);
    last_error = why;
    if (group.depth > 0) group.failed = status;
    return status;
}
ncclResult_t requested_failure(ncclResult_t status) { return fail(status, "the stand-in for NCCL fails on request"); }

// An operation's output must not overlap any buffer of the launch, except its own input at the place that the
// documentation of each collective names.
void require_apart(std::span<const Operation> operations, int rank, int size) {
    const auto overlap = [](const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
        return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
    };
    for (const Operation& op : operations) {
        const std::size_t written = op.bytes_written(rank, size);
        const std::size_t offset = rank * op.bytes();
        for (const Operation& other : operations) {
            const bool in_place = &op == &other && (op.kind == Kind::reduce_scatter ? op.out == op.in + offset
                                                    : op.kind == Kind::all_gather   ? op.in == op.out + offset
                                                                                    : op.in == op.out);
            if ((!in_place && overlap(op.out, written, other.in, other.bytes_read(rank, size))) ||
                (&op != &other && overlap(op.out, written, other.out, other.bytes_written(rank, size))))
                stop("rank " + std::to_string(rank) + ": " + describe(op) + " writes memory of " +
                     (&op == &other ? "its own input" : describe(other) + " in the same group"));
        }
    }
}

void enqueue(ncclComm_t comm, cudaStream_t stream, std::span<const Operation> operations) {
    if (operations.size() > kMostOperations) stop("a group has more than 2048 operations");
    require_apart(operations, comm->rank, comm->size);
    const auto launch = std::make_unique<Launch>();
    launch->place = comm->place;
    launch->rank = comm->rank;
    launch->size = comm->size;
    launch->number = ++comm->launches;
    launch->seconds = stand_in::setting("STAND_IN_NCCL_SECONDS", 30);
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
    if (!comm) return fail(ncclInvalidArgument, "no communicator");
    if (op.root < 0 || op.root >= comm->size)
        return fail(ncclInvalidArgument, "no rank " + std::to_string(op.root) + " among " + std::to_string(comm->size));
    if (op.type < 0 || op.type >= ncclNumTypes) return fail(ncclInvalidArgument, "unknown type");
    if (reduction < 0 || reduction >= ncclNumOps) return fail(ncclInvalidArgument, "unknown reduction");
    if (op.type != ncclFloat32 && op.type != ncclBfloat16 && op.type != ncclUint8)
        stop("the stand-in for NCCL supports float32, bfloat16 and uint8 only");
    if (reduction != ncclSum) stop("the stand-in for NCCL supports ncclSum only");
    if (op.count == 0) return ncclSuccess;
    if ((!op.in && op.bytes_read(comm->rank, comm->size)) || (!op.out && op.bytes_written(comm->rank, comm->size)))
        return fail(ncclInvalidArgument, "a buffer is null");
    // ncclGroupStart: no operation starts before ncclGroupEnd
    if (group.depth == 0) enqueue(comm, stream, std::span(&op, 1));
    else group.calls.push_back({comm, stream, op});
    return ncclSuccess;
}

// `status`: result of ncclGroupEnd itself.
ncclResult_t end_group(ncclResult_t status) {
    if (group.depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--group.depth > 0) return status;
    const Group ended = std::exchange(group, {});
    if (ended.failed != ncclSuccess) return ended.failed;  // none of its operations starts
    std::vector<std::pair<ncclComm_t, cudaStream_t>> launches;
    for (const Call& call : ended.calls)
        if (const std::pair to(call.comm, call.stream); std::ranges::find(launches, to) == launches.end())
            launches.push_back(to);
    for (const auto& [comm, stream] : launches) {
        std::vector<Operation> operations;
        for (const Call& call : ended.calls)
            if (call.comm == comm && call.stream == stream) operations.push_back(call.op);
        enqueue(comm, stream, operations);
    }
    return ncclSuccess;
}

Place place_of(const ncclUniqueId& id) {
    Place place;
    std::memcpy(&place, id.internal, sizeof place);
    return place;
}

// Reports to the other ranks, which wait in ncclCommInitRank, that this rank has failed.
ncclResult_t stay_away(const ncclUniqueId& id, int rank, ncclResult_t status) {
    Place place = place_of(id);
    Shared* shared = open_shared(place, 0);
    if (shared && rank >= 0 && rank < kMostRanks) shared->rank[rank].state = State::failed;
    return status;
}

// Waits for the other ranks in ncclCommInitRank. Returns "" once all have joined, otherwise the reason why not.
std::string wait_for_ranks(const Shared& shared, int size, std::int64_t seconds) {
    const auto until = Clock::now() + std::chrono::seconds(seconds);
    for (;;) {
        std::string absent, lost;
        for (int rank = 0; rank < size; ++rank) {
            const State state = shared.rank[rank].state;
            const std::string name = " rank " + std::to_string(rank);
            if (state == State::absent) absent += name;
            if (state == State::failed) lost = name + " failed";
            if (state == State::joined && shared.rank[rank].gone()) lost = name + "'s process has ended";
        }
        if (absent.empty() && !lost.ends_with("failed")) return "";
        if (!lost.empty()) return lost;
        if (Clock::now() > until) return " after " + std::to_string(seconds) + " s missing:" + absent;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

std::vector<ncclWindow_t> windows;  // that are registered: by one thread

void end_window(ncclWindow_t window) {
    stand_in::released(window, "ncclWindow_t");
    std::erase(windows, window);
    delete window;
}

// Common part of ncclCommDestroy and ncclCommAbort: frees the communicator.
ncclResult_t leave(const char* function, ncclComm_t comm, State state) {
    const bool fails = stand_in::failure_injected(function);
    if (!comm) return fail(ncclInvalidArgument, "no communicator");
    // NCCL ends a communicator's windows, too; here only ncclCommAbort does
    for (const ncclWindow_t window : std::vector(windows))
        if (window->comm != comm) continue;
        else if (state == State::aborted) end_window(window);
        else stop("ncclCommDestroy: memory is still registered as a window");
    stand_in::released(comm, "ncclComm_t");
    comm->shared->rank[comm->rank].state = state;
    delete comm;
    return fails ? requested_failure(ncclUnhandledCudaError) : ncclSuccess;
}

const std::byte* bytes(const void* buffer) { return static_cast<const std::byte*>(buffer); }
std::byte* bytes(void* buffer) { return static_cast<std::byte*>(buffer); }

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    if (!version) return fail(ncclInvalidArgument, "ncclGetVersion: null pointer");
    *version = NCCL_VERSION_CODE;  // ncclGetVersion: the same number as in the header
    return ncclSuccess;
}

// ncclGetErrorString: a text for each result; the texts are not documented.
const char* ncclGetErrorString(ncclResult_t result) {
    constexpr const char* kTexts[] = {"no error",
                                      "unhandled CUDA error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "operation in progress"};
    return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown result code";
}

// ncclGetLastError: the last error in NCCL; reading does not clear it.
const char* ncclGetLastError(ncclComm_t) {
    thread_local std::string text;
    const std::lock_guard lock(last_error_mutex);
    text = last_error;
    return text.c_str();
}

// ncclGetUniqueId: called once per communicator; all ranks pass the identifier to ncclCommInitRank.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    STAND_IN_MAY_FAIL(requested_failure(ncclSystemError));
    if (!id) return fail(ncclInvalidArgument, "ncclGetUniqueId: null pointer");
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
    STAND_IN_MAY_FAIL(stay_away(id, rank, requested_failure(ncclSystemError)));
    if (!comm) return stay_away(id, rank, fail(ncclInvalidArgument, "ncclCommInitRank: null pointer"));
    // ncclCommInitRank: the rank is from 0 to the number of ranks - 1
    if (size < 1 || rank < 0 || rank >= size)
        return fail(ncclInvalidArgument, "no rank " + std::to_string(rank) + " among " + std::to_string(size));
    if (size > kMostRanks) stop("ncclCommInitRank: the stand-in supports at most 16 ranks");
    if (group.depth > 0) stop("ncclCommInitRank: the stand-in does not support it in a group");
    Place place = place_of(id);
    Shared* const shared = open_shared(place, size);
    if (!shared) return fail(ncclRemoteError, "the process that created the identifier has ended");
    Rank& mine = shared->rank[rank];
    // ncclCommInitRank: each rank joins once
    State state = State::absent;
    if (!mine.state.compare_exchange_strong(state, State::joined))
        return fail(ncclInvalidUsage, "ncclCommInitRank: rank " + std::to_string(rank) + " has already joined");
    mine.host = getpid();
    int others = 0;
    if (!shared->size.compare_exchange_strong(others, size) && others != size)
        return stay_away(id, rank,
                         fail(ncclInvalidUsage, "ncclCommInitRank: " + std::to_string(size) +
                                                    " ranks, but another rank passed " + std::to_string(others)));
    const std::int64_t seconds = 2 * stand_in::setting("STAND_IN_NCCL_SECONDS", 30);
    if (const std::string why = wait_for_ranks(*shared, size, seconds); !why.empty())
        return stay_away(id, rank, fail(ncclRemoteError, "ncclCommInitRank:" + why));
    *comm = new ncclComm{shared, place, rank, size};
    stand_in::made(*comm, "ncclComm_t");
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
    if (!comm || !error) return fail(ncclInvalidArgument, "ncclCommGetAsyncError: null pointer");
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

// ncclMemFree: frees memory of ncclMemAlloc, which must not be registered any more.
ncclResult_t ncclMemFree(void* memory) {
    const bool fails = stand_in::failure_injected(__func__);
    if (std::ranges::find(windows, memory, &ncclWindow_vidmem::memory) != windows.end())
        stop("ncclMemFree: the memory is still registered as a window");
    cudaFree(memory);
    return fails ? requested_failure(ncclUnhandledCudaError) : ncclSuccess;
}

// ncclCommWindowRegister: all ranks call it; sizes are equal, and with NCCL_WIN_COLL_SYMMETRIC the memory is of
// ncclMemAlloc.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t bytes, ncclWindow_t* window, int) {
    STAND_IN_MAY_FAIL(requested_failure(ncclUnhandledCudaError));
    if (!comm || !memory || !window) return fail(ncclInvalidArgument, "ncclCommWindowRegister: null pointer");
    std::atomic<std::uint64_t>& mine = comm->shared->rank[comm->rank].registered;
    mine += bytes;
    const auto until = Clock::now() + std::chrono::seconds(stand_in::setting("STAND_IN_NCCL_SECONDS", 30));
    for (const Rank& other : std::span(comm->shared->rank, comm->size))
        while (other.registered < mine) {
            if (Clock::now() > until) stop("ncclCommWindowRegister: a rank stays away, or has a smaller size");
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    *window = new ncclWindow_vidmem{comm, memory};
    stand_in::made(*window, "ncclWindow_t");
    windows.push_back(*window);
    return ncclSuccess;
}

// ncclCommWindowDeregister: the communicator exists, and none of its operations uses the memory any more.
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
    const bool fails = stand_in::failure_injected(__func__);
    if (!comm || !window || std::ranges::find(windows, window) == windows.end() || window->comm != comm)
        stop("ncclCommWindowDeregister: no window of this communicator");
    end_window(window);
    return fails ? requested_failure(ncclUnhandledCudaError) : ncclSuccess;
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
