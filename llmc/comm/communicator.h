// communicator.h - communication between the ranks of a run: over MPI (communicator_mpi.cpp), over NCCL
// (communicator_nccl.cpp), or none for a single rank. The tests add ranks as threads
// (test/support/communicator_local.h).
//
// Every rank makes the same calls in the same order. There are two kinds: device collectives, and the control plane.
//
// Device collectives move tensors on the communicator's own stream, overlapped with the compute stream. They are
// enqueued in groups:
//     comm.group_begin(compute);
//     comm.all_reduce(gradients);  ...
//     const CommEvent reduced = comm.group_end();     // returns immediately
//     ... more work on `compute` ...
//     comm.wait(compute, reduced);                    // later work on `compute` sees the result
//   Before  A group starts after all work that was enqueued on `compute` before group_begin(): its inputs are written,
//           and its outputs are no longer read. So call group_begin() after you enqueue the kernels that write its
//           input; no other event is needed.
//   After   From group_end() until wait() or sync(), the memory of the group belongs to the communicator: do not read
//           or write its outputs, and do not write its inputs. Groups run one after the other: waiting for one waits
//           for all before it.
//   Within  The operations of a group may run in any order and concurrently: none may access memory that another one
//           writes.
//
// The sum over ranks: all_reduce IS reduce_scatter followed by all_gather, so sharded (ZeRO) and unsharded runs sum in
// the same order. Over MPI, on threads and with one rank the order is rank 0 + rank 1 + ...; float and bf16 are summed
// in float, and the sum is rounded once to the element type. Over NCCL it is the order of NCCL's algorithm, which
// depends on the number of elements and the machines, but is the same for both operations. The result is bit-identical
// on all ranks.
//
// Splitting: split() creates a communicator of some of the ranks (ncclCommSplit), with the same contracts. All
// communicators of a rank use one stream: groups run in the order of the calls, which is the same on all ranks, so no
// two groups deadlock. Before a group that needs the result of another communicator's group, call wait() as usual.
//
// The control plane exchanges a few numbers and strings between hosts; its calls block. You may use it while device
// collectives are in progress.
#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/device/memory.h"
#include "llmc/base/element_range.h"
#include "llmc/comm/comm_stream.h"

namespace llmc {

// Every shard starts at a multiple of this number of elements, so it is aligned to kTensorAlignment bytes in any type
// if the array is.
inline constexpr std::int64_t kShardMultiple = kernels::kTensorAlignment / sizeof(kernels::bf16);
// The part of an array that one rank owns, independent of the element type: a rank owns the same elements of the bf16
// parameters and of their fp32 master weights. Each shard has elements / size elements, rounded down to kShardMultiple;
// that of the last rank also has the rest, fewer than kShardMultiple * size elements. So NCCL moves the equal shards in
// one operation, and the rest, if there is one, in a second one of the same launch.
ElementRange shard_of(std::int64_t elements, int rank, int size);

// A point in the communication stream, after a group. A default-constructed one precedes all groups.
struct CommEvent {
    std::int64_t number = 0;
};

enum class ElementType { fp32, bf16, byte };
template <class T>
concept Summed = std::is_same_v<T, float> || std::is_same_v<T, kernels::bf16>;
template <class T>
    requires Summed<T> || std::is_same_v<T, std::byte>
inline constexpr ElementType element_of = std::is_same_v<T, float>           ? ElementType::fp32
                                          : std::is_same_v<T, kernels::bf16> ? ElementType::bf16
                                                                             : ElementType::byte;
constexpr std::int64_t bytes_of(ElementType element) {
    constexpr std::int64_t kBytes[] = {4, 2, 1};
    return kBytes[int(element)];
}

// One device collective, as an implementation receives it.
struct Collective {
    enum class Kind { reduce_scatter, all_gather, all_to_all, broadcast, reduce } kind;
    ElementType element;
    // of the whole array: reduce_scatter's input, all_gather's output, each array of all_to_all, broadcast's and
    // reduce's data
    std::int64_t elements;
    std::byte* out;
    const std::byte* in;
    int root = 0;
};

enum class HostReduction { sum, max };

class Communicator {
public:
    virtual ~Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    int local_rank() const { return place_.local_rank; }  // among the ranks of this machine: selects the GPU
    int node() const { return place_.node; }              // identifies the machine: the same on all of its ranks
    virtual std::string describe() const = 0;             // for the log

    // A communicator of the ranks that pass the same color, in the same order as here. Every rank calls it after it has
    // waited for all device collectives. Destroy it before this one, whose byte count includes it.
    virtual std::unique_ptr<Communicator> split(int color) = 0;
    // A second control plane of the same ranks, for another thread; made and destroyed like a part. Its calls do not
    // wait for calls to this one, nor for device collectives. It has no device collectives of its own.
    virtual std::unique_ptr<Communicator> duplicate_control() { return split(0); }

    // ---- device collectives. T = float or bf16; all_gather, all_to_all and broadcast also take std::byte.
    // Arrays are aligned to 64 bytes and have the same length on every rank.
    void group_begin(device::StreamRef compute);
    CommEvent group_end();
    // mine = the sum over all ranks of this rank's shard of `whole`; `mine` may be that shard itself (in place).
    template <Summed T> void reduce_scatter(std::span<T> mine, std::type_identity_t<std::span<const T>> whole) {
        add<T>(first_, Collective::Kind::reduce_scatter, mine, whole);
    }
    // whole = the shards of all ranks; `mine`, this rank's shard, may be its part of `whole` (in place).
    template <class T> void all_gather(std::span<T> whole, std::type_identity_t<std::span<const T>> mine) {
        add<T>(first_, Collective::Kind::all_gather, whole, mine);
    }
    // data = the sum of `data` over all ranks.
    template <Summed T> void all_reduce(std::span<T> data) {
        const std::span<T> mine = shard_of(std::int64_t(data.size()), rank_, size_).of(data);
        add<T>(first_, Collective::Kind::reduce_scatter, mine, data);
        add<T>(second_, Collective::Kind::all_gather, data, mine);
    }
    // Both arrays have one part per rank, of the same size, a multiple of 64 bytes: part r of `out` on rank s = part s
    // of `in` on rank r. They must not overlap.
    template <class T> void all_to_all(std::span<T> out, std::type_identity_t<std::span<const T>> in) {
        add<T>(first_, Collective::Kind::all_to_all, out, in);
    }
    // data = `data` of rank `root`.
    template <class T> void broadcast(std::span<T> data, int root) {
        add<T>(first_, Collective::Kind::broadcast, data, data, root);
    }
    // On rank `root`: data = the sum of `data` over all ranks. On other ranks it does not change.
    template <Summed T> void reduce(std::span<T> data, int root) {
        add<T>(first_, Collective::Kind::reduce, data, data, root);
    }

    // Device memory for device collectives, of the same size on all ranks, which call it in the same order. NCCL
    // accesses it without copies to buffers of its own. Free it before the communicator, after its last group.
    template <class T> device::Array<T> array(std::size_t size) {
        return device::Array<T>(allocate(size * sizeof(T)));
    }
    // What an array may take in addition, because its size is rounded up.
    virtual std::size_t allocation_rounding() const { return 0; }

    // Work enqueued on `compute` from now on sees the results of the groups up to `event`. Blocks only on a CPU.
    virtual void wait(device::StreamRef compute, CommEvent event) = 0;
    // Blocks the host until the groups up to `event` are done. wait(), sync() and group_end() throw the Error of a
    // group that has failed.
    virtual void sync(CommEvent event) = 0;
    // How long groups took and how long compute waited for them; empty if not measured.
    virtual std::optional<CommTimes> times() const { return std::nullopt; }
    // Bytes that this rank has sent to other ranks in all groups so far, computed in group_end() by formula: for N
    // bytes on R ranks, reduce_scatter and all_to_all send N minus this rank's shard, all_gather R - 1 times that
    // shard, broadcast R - 1 times N from its root and 0 from others, reduce N from every rank but its root. So
    // all_reduce sends 2 (R - 1) / R N if shards are equal, like a ring and like ranks over MPI. The control plane does
    // not count.
    std::int64_t bytes_sent() const { return bytes_sent_; }

    // On return no device collective accesses memory any more: waits for all of them, and calls abort() if one has
    // failed. With `abandon` it ends them instead of waiting (ncclCommAbort): results are undefined, and no further
    // collectives are possible.
    virtual void end_all(bool abandon) noexcept = 0;
    // All ranks leave with the same error (SharedError, agreement.h), from the same place in the order of their calls:
    // until the next group, destructors do not abandon collectives during an exception, because none of them waits for
    // a rank that does not come.
    void leave_together() { all_leave() = true; }

    // ---- control plane
    // elementwise; every rank gets the result
    virtual void host_reduce(std::span<std::int64_t> values, HostReduction reduction) = 0;
    std::int64_t host_reduce(std::int64_t value, HostReduction reduction) {
        host_reduce(std::span(&value, 1), reduction);
        return value;
    }
    // the strings of all ranks, in rank order; every rank gets them
    virtual std::vector<std::string> host_gather(std::string_view mine) = 0;
    // Blocks the calling host thread until all ranks have called it; does not wait for device collectives.
    virtual void barrier() = 0;

    // Ends the program on every rank within seconds, with this exit code if the launcher passes it on. Prints
    // "error: rank R on HOST: REASON" once; if several ranks fail at the same time, some may be ended before they print
    // theirs. main() calls it for an exception that the run did not catch. In tests, ranks that are threads throw
    // instead.
    [[noreturn]] virtual void abort(std::string_view reason, int exit_code) = 0;

protected:
    struct Place {
        int local_rank = 0, node = 0;
    };
    Communicator(int rank, int size, Place place, Communicator* whole = nullptr)
        : rank_(rank),
          size_(size),
          place_(place),
          whole_(whole) {}
    Place place() const { return place_; }
    // The communicator that split() was called on, or for NCCL the control plane; nullptr: none.
    Communicator* whole() const { return whole_; }
    // In a destructor: whether an exception of which the other ranks may not know ends this rank.
    bool leaves_alone() const { return std::uncaught_exceptions() > 0 && !all_leave(); }

    // A group is begin_group(), at most two calls of enqueue(), end_group(). The operations of one enqueue() are
    // independent of each other.
    virtual void begin_group(device::StreamRef compute) = 0;
    virtual void enqueue(std::span<const Collective> operations) = 0;
    virtual CommEvent end_group() = 0;
    virtual device::Memory allocate(std::size_t bytes) { return device::Memory(bytes); }

private:
    using Collectives = std::vector<Collective>;
    template <class T>
    void add(Collectives& to, Collective::Kind kind, std::span<T> out, std::span<const T> in, int root = 0) const {
        add(to, {kind, element_of<T>, 0, reinterpret_cast<std::byte*>(out.data()),
                 reinterpret_cast<const std::byte*>(in.data()), root}, std::ssize(out), std::ssize(in));
    }
    void add(Collectives& to, Collective operation, std::int64_t out_size, std::int64_t in_size) const;
    std::int64_t bytes_sent_in(const Collective& operation) const;
    std::atomic<bool>& all_leave() const { return whole_ ? whole_->all_leave() : all_leave_; }

    int rank_, size_;
    Place place_;
    Communicator* whole_;
    std::int64_t bytes_sent_ = 0;
    mutable std::atomic<bool> all_leave_ = false;  // of the run's communicator, also for its parts
    bool in_group_ = false;
    device::StreamRef compute_ = nullptr;
    Collectives first_, second_;  // second_: the all_gathers of all_reduce, after their reduce_scatters
};

// The name of this machine in messages.
std::string host_name();

// The number of processes that the launcher started, and the environment variable that gives it. 1 without a launcher.
struct Launch {
    int processes = 1;
    std::string variable;
};
Launch launched_processes();

// node() of every rank, in rank order. Every rank calls it.
std::vector<int> nodes_of(Communicator& ranks);
// The number of ranks of each node; throws Error if it is not the same for all.
int ranks_per_node(std::span<const int> nodes);

// The communicator of this process: MPI, or for a single rank one that needs neither launcher nor MPI. Call it before
// you select the device, which depends on local_rank(). chunk_bytes: size of the messages to one rank; 0: automatic.
// ranks_per_node: the number of consecutive ranks that count as a machine; 0: as MPI reports.
std::unique_ptr<Communicator> open_communicator(std::int64_t chunk_bytes = 0, int ranks_per_node = 0);
// Device collectives over NCCL; `control` remains the control plane. Call it after the device is selected, one GPU per
// rank.
std::unique_ptr<Communicator> over_nccl(std::shared_ptr<Communicator> control);
// What this build lacks for MPI or NCCL; empty if it lacks nothing.
std::string why_no_mpi();
std::string why_no_nccl();

// The parts of open_communicator().
std::unique_ptr<Communicator> alone();
// throws Error in a build without MPI
std::unique_ptr<Communicator> open_mpi(const Launch& launch, std::int64_t chunk_bytes, int ranks_per_node);

}  // namespace llmc
