// nccl.cpp - a stand-in for libnccl: ranks are processes of one machine, whose devices exchange data through memory
// that they share
//
// A launch is one work of the device: one call outside of a group, or all calls of a group on one stream.
//   post   when all ranks have taken what this one posted before: the launch's operations and the data that they send
//          are copied to this rank's area
//   take   when all peers of the launch have posted theirs: the operations are compared, and the results written
// Sums are rank 0 + rank 1 + ..., in float for bf16, rounded once. One launch meets one launch of each peer: two sends
// of one group are not met by two receives apart, which NCCL would allow.
// What NCCL forbids or would hang in ends the program with both ranks' operations, or after STAND_IN_NCCL_SECONDS.
// STAND_IN_NCCL_ASYNC=N makes every communicator report an asynchronous error after its Nth launch.
//
// The shared memory is a file without a name, which goes with the last process that has it: ncclGetUniqueId opens it,
// the others open it as /proc/PID/fd/FD.
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

namespace {

struct Call {
    ncclComm_t comm;
    cudaStream_t stream;
    Operation op;
};
// ncclGroupStart, ncclGroupEnd: a group is one thread's.
struct Group {
    int depth = 0;
    ncclResult_t failed = ncclSuccess;
    std::vector<Call> calls;
};
thread_local Group group;

std::mutex last_error_mutex;  // guards `last_error`, which is that of all threads
std::string last_error;

// A call that fails leaves its words to ncclGetLastError, and its group has failed.
ncclResult_t fail(ncclResult_t status, const std::string& why) {
    const std::lock_guard lock(last_error_mutex);
    last_error = why;
    if (group.depth > 0) group.failed = status;
    return status;
}
ncclResult_t told(ncclResult_t status) { return fail(status, "the stand-in for NCCL was told to fail"); }

// What one operation writes nobody else of the launch may read or write; but the documentation of each collective names
// one place where its own two buffers may be the same memory.
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
    if (operations.size() > kMostOperations) stop("a group of more than 2048 operations");
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
    if (at > kAreaBytes) stop(describe(operations) + ": more than the 256 MiB that the stand-in sends at once");
    const std::span payload(reinterpret_cast<const std::byte*>(launch.get()),
                            offsetof(Launch, operation) + operations.size() * sizeof(Operation));
    stand_in::enqueue(stream, "NCCL's " + describe(operations), exchange, payload, ranges);
}

ncclResult_t call(ncclComm_t comm, cudaStream_t stream, const Operation& op, ncclRedOp_t reduction = ncclSum) {
    if (!comm) return fail(ncclInvalidArgument, "no communicator");
    if (op.root < 0 || op.root >= comm->size)
        return fail(ncclInvalidArgument, "no rank " + std::to_string(op.root) + " among " + std::to_string(comm->size));
    if (op.type < 0 || op.type >= ncclNumTypes) return fail(ncclInvalidArgument, "no such type");
    if (reduction < 0 || reduction >= ncclNumOps) return fail(ncclInvalidArgument, "no such reduction");
    if (op.type != ncclFloat32 && op.type != ncclBfloat16 && op.type != ncclFloat64 && op.type != ncclUint8)
        stop("the stand-in for NCCL has float32, bfloat16, float64 and uint8 only");
    if (reduction != ncclSum) stop("the stand-in for NCCL has no reduction but the sum");
    if (op.count == 0) return ncclSuccess;
    if ((!op.in && op.bytes_read(comm->rank, comm->size)) || (!op.out && op.bytes_written(comm->rank, comm->size)))
        return fail(ncclInvalidArgument, "a buffer is null");
    // ncclGroupStart: nothing is begun on a stream before ncclGroupEnd
    if (group.depth == 0) enqueue(comm, stream, std::span(&op, 1));
    else group.calls.push_back({comm, stream, op});
    return ncclSuccess;
}

// `status`: of ncclGroupEnd itself.
ncclResult_t end_group(ncclResult_t status) {
    if (group.depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--group.depth > 0) return status;
    const Group ended = std::exchange(group, {});
    if (ended.failed != ncclSuccess) return ended.failed;  // nothing of it is begun
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

// Tells the others, who wait in ncclCommInitRank, that this rank does not come.
ncclResult_t stay_away(const ncclUniqueId& id, int rank, ncclResult_t status) {
    Place place = place_of(id);
    Shared* shared = open_shared(place, 0);
    if (shared && rank >= 0 && rank < kMostRanks) shared->rank[rank].state = State::failed;
    return status;
}

// ncclCommInitRank waits for the other ranks. Empty when all are here, else why they never will be.
std::string wait_for_ranks(const Shared& shared, int size, std::int64_t seconds) {
    const auto until = Clock::now() + std::chrono::seconds(seconds);
    for (;;) {
        std::string absent, lost;
        for (int rank = 0; rank < size; ++rank) {
            const State state = shared.rank[rank].state;
            const std::string name = " rank " + std::to_string(rank);
            if (state == State::absent) absent += name;
            if (state == State::failed) lost = name + " failed";
            if (state == State::joined && shared.rank[rank].gone()) lost = name + "'s process is gone";
        }
        if (absent.empty() && !lost.ends_with("failed")) return "";
        if (!lost.empty()) return lost;
        if (Clock::now() > until) return " after " + std::to_string(seconds) + " s there is no" + absent;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// ncclCommDestroy and ncclCommAbort free the communicator, which is not used again.
ncclResult_t leave(const char* function, ncclComm_t comm, State state) {
    const bool fails = stand_in::told_to_fail(function);
    if (!comm) return fail(ncclInvalidArgument, "no communicator");
    stand_in::given_back(comm, "ncclComm_t");
    comm->shared->rank[comm->rank].state = state;
    delete comm;
    return fails ? told(ncclUnhandledCudaError) : ncclSuccess;
}

const std::byte* bytes(const void* buffer) { return static_cast<const std::byte*>(buffer); }
std::byte* bytes(void* buffer) { return static_cast<std::byte*>(buffer); }

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    if (!version) return fail(ncclInvalidArgument, "ncclGetVersion: no place for the version");
    *version = NCCL_VERSION_CODE;  // ncclGetVersion: the same number as the header's
    return ncclSuccess;
}

// ncclGetErrorString: words for each result, which are not documented.
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

// ncclGetLastError: the last error that occurred in NCCL; asking does not clear it.
const char* ncclGetLastError(ncclComm_t) {
    thread_local std::string text;
    const std::lock_guard lock(last_error_mutex);
    text = last_error;
    return text.c_str();
}

// ncclGetUniqueId: called once, it gives the identifier that all ranks of a communicator need for ncclCommInitRank.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    STAND_IN_MAY_FAIL(told(ncclSystemError));
    if (!id) return fail(ncclInvalidArgument, "ncclGetUniqueId: no place for the identifier");
    std::random_device random;
    const std::uint64_t identity = std::uint64_t(random()) << 32 | random();
    const Place place{getpid(), memfd_create("stand_in_nccl", MFD_CLOEXEC), identity};
    if (place.file < 0 || ftruncate(place.file, sizeof(Shared) + kMostRanks * kAreaBytes) != 0 ||
        pwrite(place.file, &identity, sizeof identity, offsetof(Shared, identity)) != sizeof identity)
        return fail(ncclSystemError, "no memory to share: " + std::string(strerror(errno)));
    *id = {};
    std::memcpy(id->internal, &place, sizeof place);
    return ncclSuccess;
}

// ncclCommInitRank: a communicator on the current device, once all ranks have called it.
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
    STAND_IN_MAY_FAIL(stay_away(id, rank, told(ncclSystemError)));
    if (!comm) return stay_away(id, rank, fail(ncclInvalidArgument, "ncclCommInitRank: no place for the communicator"));
    // ncclCommInitRank: the rank lies between 0 and the number of ranks - 1
    if (size < 1 || rank < 0 || rank >= size)
        return fail(ncclInvalidArgument, "no rank " + std::to_string(rank) + " among " + std::to_string(size));
    if (size > kMostRanks) stop("ncclCommInitRank: the stand-in has at most 16 ranks");
    if (group.depth > 0) stop("ncclCommInitRank: the stand-in has none within a group");
    Place place = place_of(id);
    Shared* const shared = open_shared(place, size);
    if (!shared) return fail(ncclRemoteError, "the process that made the identifier is gone");
    Rank& mine = shared->rank[rank];
    // ncclCommInitRank: every rank is there once
    State state = State::absent;
    if (!mine.state.compare_exchange_strong(state, State::joined))
        return fail(ncclInvalidUsage, "ncclCommInitRank: rank " + std::to_string(rank) + " was there before");
    mine.host = getpid();
    int others = 0;
    if (!shared->size.compare_exchange_strong(others, size) && others != size)
        return stay_away(id, rank,
                         fail(ncclInvalidUsage, "ncclCommInitRank: " + std::to_string(size) +
                                                    " ranks, of another rank " + std::to_string(others)));
    const std::int64_t seconds = 2 * stand_in::setting("STAND_IN_NCCL_SECONDS", 30);
    if (const std::string why = wait_for_ranks(*shared, size, seconds); !why.empty())
        return stay_away(id, rank, fail(ncclRemoteError, "ncclCommInitRank:" + why));
    *comm = new ncclComm{shared, place, rank, size};
    stand_in::made(*comm, "ncclComm_t");
    return ncclSuccess;
}

// ncclCommDestroy: frees what this rank holds of the communicator.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    return leave(__func__, comm, State::destroyed);
}

// ncclCommAbort: the same, and aborts what is still running on the device.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    return leave(__func__, comm, State::aborted);
}

// ncclCommGetAsyncError: the errors of operations that were begun. What it found is `error`; the call itself succeeded.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    STAND_IN_MAY_FAIL(told(ncclSystemError));
    if (!comm || !error) return fail(ncclInvalidArgument, "ncclCommGetAsyncError: no communicator or place for it");
    *error = ncclSuccess;
    const std::int64_t told_after = stand_in::setting("STAND_IN_NCCL_ASYNC", 0);
    if (told_after > 0 && comm->launches >= std::uint64_t(told_after)) *error = told(ncclSystemError);
    for (int rank = 0; rank < comm->size; ++rank) {
        const Rank& other = comm->shared->rank[rank];
        // ncclRemoteError: possibly a remote process exited too early
        if (other.state == State::aborted || (other.state == State::joined && other.gone()))
            *error = fail(ncclRemoteError, "rank " + std::to_string(rank) +
                                               (other.state == State::aborted ? " aborted" : "'s process is gone"));
    }
    return ncclSuccess;
}

// ncclGroupStart: calls up to ncclGroupEnd become one operation, which is not begun before.
ncclResult_t ncclGroupStart() {
    STAND_IN_MAY_FAIL(told(ncclSystemError));
    ++group.depth;
    return ncclSuccess;
}

// ncclGroupEnd: the operation is in its streams when this returns, not done; what needs it comes later.
ncclResult_t ncclGroupEnd() {
    STAND_IN_MAY_FAIL(end_group(told(ncclUnhandledCudaError)));
    return end_group(ncclSuccess);
}

// ncclReduceScatter: the buffer to send has size * count elements; block i of the sum goes to rank i.
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                               ncclComm_t comm, cudaStream_t stream) {
    STAND_IN_MAY_FAIL(told(ncclUnhandledCudaError));
    return call(comm, stream, {Kind::reduce_scatter, type, 0, count, bytes(in), bytes(out)}, reduction);
}

// ncclAllGather: the buffer to receive has size * count elements; those of rank i are block i.
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    STAND_IN_MAY_FAIL(told(ncclUnhandledCudaError));
    return call(comm, stream, {Kind::all_gather, type, 0, count, bytes(in), bytes(out)});
}

// ncclBroadcast: the buffer to send is used on the root alone.
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    STAND_IN_MAY_FAIL(told(ncclUnhandledCudaError));
    return call(comm, stream, {Kind::broadcast, type, root, count, bytes(in), bytes(out)});
}

// ncclReduce: the buffer to receive is used on the root alone, and may be null elsewhere.
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t reduction, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    STAND_IN_MAY_FAIL(told(ncclUnhandledCudaError));
    return call(comm, stream, {Kind::reduce, type, root, count, bytes(in), bytes(out)}, reduction);
}

// ncclSend, ncclRecv: the device waits for the peer; those that need each other must be in one group.
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    STAND_IN_MAY_FAIL(told(ncclUnhandledCudaError));
    return call(comm, stream, {Kind::send, type, peer, count, bytes(in), nullptr});
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    STAND_IN_MAY_FAIL(told(ncclUnhandledCudaError));
    return call(comm, stream, {Kind::receive, type, peer, count, nullptr, bytes(out)});
}

}  // extern "C"
