// nccl_exchange.cpp - runs launches in the device processes: posts this rank's data and takes the data of its peers
#include "test/stand_in/nccl_exchange.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

namespace stand_in::nccl {

using Clock = std::chrono::steady_clock;

std::string describe(const Operation& op) {
    constexpr const char* kNames[] = {"reduce-scatter", "all-gather", "broadcast", "reduce", "send", "receive"};
    constexpr const char* kRoots[] = {"", "", " from rank ", " to rank ", " to rank ", " from rank "};
    const char* type = op.type == ncclFloat32    ? " float32"
                       : op.type == ncclBfloat16 ? " bfloat16"
                                                 : " uint8";
    const std::string root = kRoots[int(op.kind)];
    return std::string(kNames[int(op.kind)]) + " of " + std::to_string(op.count) + type +
           (root.empty() ? "" : root + std::to_string(op.root));
}
std::string describe(std::span<const Operation> launch) {
    return describe(launch[0]) + (launch.size() > 1 ? " and " + std::to_string(launch.size() - 1) + " more" : "");
}

Shared* open_shared(Place& place, int size) {
    const std::string path = "/proc/" + std::to_string(place.process) + "/fd/" + std::to_string(place.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0 && errno == ENOENT) return nullptr;
    if (file < 0) stop(path + ", the memory that ranks share: " + strerror(errno));
    void* memory = mmap(nullptr, sizeof(Shared) + size * kAreaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) stop("the memory that ranks share cannot be mapped: " + std::string(strerror(errno)));
    const auto shared = static_cast<Shared*>(memory);
    if (shared->identity != place.identity) return nullptr;
    place.process = getpid();
    place.file = file;
    return shared;
}

namespace {

// Whether the launch waits for other ranks: to take the previous launch, or to post theirs.
bool waits(const Launch& launch, const Shared& shared) {
    const Rank& mine = shared.rank[launch.rank];
    std::vector<int> missing;
    for (int peer = 0; peer < launch.size; ++peer) {
        const Rank& other = shared.rank[peer];
        const bool here = launch.posted ? !launch.concerns(peer) || other.posted[launch.rank] == mine.posted[peer]
                                        : other.taken[launch.rank] == mine.posted[peer];
        if (!here) missing.push_back(peer);
    }
    if (missing.empty()) return false;
    if (Clock::now() - launch.began < kMostWait) return true;
    std::string who;
    for (const int peer : missing)
        who.append(" ").append(std::to_string(peer)).append(shared.rank[peer].gone() ? " (its process has ended)" : "");
    stop("rank " + std::to_string(launch.rank) + " has waited " + std::to_string(kMostWait.count()) + " s in launch " +
         std::to_string(launch.number) + ", " + describe(launch.all()) + ", for rank" + who);
}

void post(Launch& launch, Shared& shared) {
    Rank& mine = shared.rank[launch.rank];
    for (const Operation& op : launch.all())
        if (const std::size_t bytes = op.bytes_read(launch.rank, launch.size))
            std::memcpy(shared.area(launch.rank) + op.at, op.in, bytes);
    std::ranges::copy(launch.all(), mine.operation);
    mine.operations = launch.operations;
    for (int peer = 0; peer < launch.size; ++peer)
        if (launch.concerns(peer)) ++mine.posted[peer];
    launch.posted = true;
}

// The peer's side of the same operation; ends the program if the peer has none or a different one.
const Operation& counterpart(const Operation& op, const Launch& launch, int peer, const Shared& shared) {
    const int rank = launch.rank;
    const std::span<const Operation> theirs = shared.rank[peer].launch();
    const auto found = std::ranges::find_if(theirs, [&](const Operation& other) {
        if (other.ordinal != op.ordinal) return false;
        if (op.collective()) return other.collective();
        return !other.collective() && other.kind != op.kind && other.root == rank;
    });
    // ncclSend, ncclRecv: the peer makes the opposite call with the same type and count. Collectives: all ranks make
    // the same call
    if (found != theirs.end() && found->type == op.type && found->count == op.count &&
        (!op.collective() || (found->kind == op.kind && found->root == op.root)))
        return *found;
    std::pair one(rank, describe(op));
    std::pair other(peer, found != theirs.end() ? describe(*found) : theirs.empty() ? "nothing" : describe(theirs));
    if (other < one) std::swap(one, other);
    stop("rank " + std::to_string(one.first) + " is in " + one.second + ", rank " + std::to_string(other.first) +
         " in " + other.second);
}

template <class T> void sum(const Operation& op, std::span<const std::byte* const> parts) {
    using Sum = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, float, T>;
    T* out = reinterpret_cast<T*>(op.out);
    for (std::size_t i = 0; i < op.count; ++i) {
        Sum sum = Sum(reinterpret_cast<const T*>(parts[0])[i]);
        for (const std::byte* part : parts.subspan(1)) sum += Sum(reinterpret_cast<const T*>(part)[i]);
        out[i] = T(sum);
    }
}
void sum(const Operation& op, std::span<const std::byte* const> parts) {
    if (op.type == ncclFloat32) sum<float>(op, parts);
    else if (op.type == ncclBfloat16) sum<__nv_bfloat16>(op, parts);
    else sum<std::uint8_t>(op, parts);
}

void take(const Operation& op, const Launch& launch, Shared& shared) {
    std::vector<const std::byte*> parts(launch.size);  // each peer's data for this operation
    for (int peer = 0; peer < launch.size; ++peer)
        if (op.concerns(peer)) parts[peer] = shared.area(peer) + counterpart(op, launch, peer, shared).at;
    switch (op.kind) {
        case Kind::reduce_scatter:
            for (const std::byte*& part : parts) part += launch.rank * op.bytes();
            sum(op, parts);
            break;
        case Kind::reduce:
            if (launch.rank == op.root) sum(op, parts);
            break;
        case Kind::all_gather:
            for (int peer = 0; peer < launch.size; ++peer)
                std::memcpy(op.out + peer * op.bytes(), parts[peer], op.bytes());
            break;
        case Kind::broadcast:
        case Kind::receive: std::memcpy(op.out, parts[op.root], op.bytes()); break;
        case Kind::send: break;
    }
}

}  // namespace

bool exchange(std::byte* payload) {
    static std::map<std::uint64_t, Shared*> opened;
    Launch& launch = *reinterpret_cast<Launch*>(payload);
    Shared*& shared = opened[launch.place.identity];
    if (!shared) shared = open_shared(launch.place, launch.size);
    if (!shared) return true;  // the host process has ended
    Rank& mine = shared->rank[launch.rank];
    // ncclCommAbort: aborts operations that have not ended
    if (mine.state == State::aborted) return true;
    if (mine.ended != launch.number - 1) return false;  // the previous launch is on another stream
    if (launch.began == Clock::time_point()) launch.began = Clock::now();
    if (!launch.posted) {
        if (waits(launch, *shared)) return false;
        post(launch, *shared);
    }
    if (waits(launch, *shared)) return false;
    for (const Operation& op : launch.all()) take(op, launch, *shared);
    for (int peer = 0; peer < launch.size; ++peer)
        if (launch.concerns(peer)) ++mine.taken[peer];
    mine.ended = launch.number;
    return true;
}

}  // namespace stand_in::nccl
