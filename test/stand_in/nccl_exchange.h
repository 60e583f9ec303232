// nccl_exchange.h - launches of NCCL's stand-in, and the memory that ranks share
#pragma once
#include <nccl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <span>
#include <string>

#include "test/stand_in/stand_in.h"

namespace stand_in::nccl {

inline constexpr int kMostRanks = 16;
inline constexpr std::chrono::seconds kMostWait(30);  // for other ranks
inline constexpr std::size_t kMostOperations = 2048;  // per group, the limit of NCCL 2.9
inline constexpr std::size_t kAreaBytes = 256 << 20;  // limit of the bytes that a rank sends in a launch; a sparse file

// ---- operations

enum class Kind { reduce_scatter, all_gather, broadcast, reduce, send, receive };

struct Operation {
    Kind kind;
    ncclDataType_t type;
    int root;           // for send and receive: the peer
    std::size_t count;  // as passed to the call
    const std::byte* in;
    std::byte* out;
    int ordinal = 0;     // index among the launch's collectives, its sends to the peer or its receives from it
    std::size_t at = 0;  // offset of its data in the rank's area

    bool collective() const { return kind < Kind::send; }
    bool concerns(int peer) const { return collective() || root == peer; }
    std::size_t bytes() const {
        return count * (type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1);
    }
    std::size_t bytes_read(int rank, int size) const {
        if (kind == Kind::receive || (kind == Kind::broadcast && rank != root)) return 0;
        return kind == Kind::reduce_scatter ? bytes() * size : bytes();
    }
    std::size_t bytes_written(int rank, int size) const {
        if (kind == Kind::send || (kind == Kind::reduce && rank != root)) return 0;
        return kind == Kind::all_gather ? bytes() * size : bytes();
    }
};

std::string describe(const Operation& op);
std::string describe(std::span<const Operation> launch);

// ---- what ranks share

enum class State { absent, joined, aborted, destroyed };

// Only the rank itself writes its fields.
struct Rank {
    std::atomic<State> state;
    std::atomic<pid_t> host;                        // its host process
    std::atomic<std::uint64_t> ended;               // launches
    std::atomic<std::uint64_t> posted[kMostRanks];  // launches sent to each rank
    std::atomic<std::uint64_t> taken[kMostRanks];   // launches received from each rank
    std::size_t operations;                         // of the last posted launch
    Operation operation[kMostOperations];

    bool gone() const { return host != 0 && kill(host, 0) != 0 && errno == ESRCH; }
    std::span<const Operation> launch() const { return {operation, operations}; }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<State>::is_always_lock_free);

struct alignas(4096) Shared {
    std::uint64_t identity;
    Rank rank[kMostRanks];

    std::byte* area(int of) { return reinterpret_cast<std::byte*>(this + 1) + of * kAreaBytes; }
};

// The shared memory as an open file of a process. An ncclUniqueId contains it.
struct Place {
    pid_t process;
    int file;
    std::uint64_t identity;
};
static_assert(sizeof(Place) <= sizeof(ncclUniqueId));

// Returns nullptr if that process has ended. Sets `place` to this process's own descriptor, which stays open until the
// process ends: work may be pending after its communicator is destroyed.
Shared* open_shared(Place& place, int size);

// ---- in the device process

// Payload of a launch; valid until its operations are done.
struct Launch {
    Place place;
    int rank, size;
    std::uint64_t number;     // of the launch in its communicator, from 1
    std::chrono::steady_clock::time_point began;  // when it started
    bool posted;
    std::size_t operations;
    Operation operation[kMostOperations];

    std::span<const Operation> all() const { return {operation, operations}; }
    bool concerns(int peer) const {
        return std::ranges::any_of(all(), [&](const Operation& op) { return op.concerns(peer); });
    }
};
static_assert(std::is_trivially_copyable_v<Launch> && sizeof(Launch) <= stand_in::kMostPayload);

// Runs a launch; a Work.
bool exchange(std::byte* payload);

}  // namespace stand_in::nccl
