// nccl_exchange.h - what a launch of NCCL's stand-in is, and the memory that ranks share
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
inline constexpr std::size_t kMostOperations = 2048;  // of a group, as with NCCL 2.9
inline constexpr std::size_t kAreaBytes = 256 << 20;  // most that one rank sends in a launch; sparse

// ---- operations

enum class Kind { reduce_scatter, all_gather, broadcast, reduce, send, receive };

struct Operation {
    Kind kind;
    ncclDataType_t type;
    int root;           // of send and receive the peer
    std::size_t count;  // as the call gives it
    const std::byte* in;
    std::byte* out;
    int ordinal = 0;     // among the launch's collectives, or its sends to one peer, or its receives from it
    std::size_t at = 0;  // where what it sends lies in the rank's area

    bool collective() const { return kind < Kind::send; }
    bool concerns(int peer) const { return collective() || root == peer; }
    std::size_t bytes() const {
        return count * (type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1);
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
// of an operation of a launch, the first one if not another
std::string describe(std::span<const Operation> launch, const Operation* op = nullptr);

// ---- what ranks share

enum class State { absent, joined, failed, aborted, destroyed };

// Each number has one writer, the rank itself.
struct Rank {
    std::atomic<State> state;
    std::atomic<pid_t> host;                        // its host process
    std::atomic<std::uint64_t> begun, ended;        // launches
    std::atomic<std::uint64_t> posted[kMostRanks];  // launches to each rank,
    std::atomic<std::uint64_t> taken[kMostRanks];   // and from each
    std::size_t operations;                         // of the launch that was posted last
    Operation operation[kMostOperations];

    bool gone() const { return host != 0 && kill(host, 0) != 0 && errno == ESRCH; }
    std::span<const Operation> launch() const { return {operation, operations}; }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<State>::is_always_lock_free);

struct alignas(4096) Shared {
    std::uint64_t identity;
    std::atomic<int> size;
    Rank rank[kMostRanks];

    std::byte* area(int of) { return reinterpret_cast<std::byte*>(this + 1) + of * kAreaBytes; }
};

// The shared memory as a file that a process has open. It is what an ncclUniqueId holds.
struct Place {
    pid_t process;
    int file;
    std::uint64_t identity;
};
static_assert(sizeof(Place) <= sizeof(ncclUniqueId));

// None where that process is gone. `place` becomes that in this process, which keeps it as long as it lives: works may
// be outstanding when their communicator is no more.
Shared* open_shared(Place& place, int size);

// ---- in the device process

// The payload of a launch, as long as its operations.
struct Launch {
    Place place;
    int rank, size;
    std::uint64_t number;     // of the communicator's, from 1
    std::int64_t seconds;     // to wait for others at most
    std::chrono::steady_clock::time_point began;  // when its turn came
    bool posted;
    std::size_t operations;
    Operation operation[kMostOperations];

    std::span<const Operation> all() const { return {operation, operations}; }
    bool concerns(int peer) const {
        return std::ranges::any_of(all(), [&](const Operation& op) { return op.concerns(peer); });
    }
};
static_assert(std::is_trivially_copyable_v<Launch> && sizeof(Launch) <= stand_in::kMostPayload);

// A launch, in the device process.
bool exchange(std::byte* payload);

}  // namespace stand_in::nccl
