// communicator.h - what the ranks of a run say to each other: over MPI (communicator_mpi.cpp), NCCL
// (communicator_nccl.cpp), or one rank alone. The tests add ranks as threads (test/support/communicator_local.h).
//
// Every rank makes the same calls in the same order. There are two planes:
//
// Device collectives move tensors on a stream of the communicator's own, beside the one that computes. They are given
//     in groups: comm.group_begin(compute);
//     comm.all_reduce(gradients);  ...
//     const CommEvent reduced = comm.group_end();     // returns at once
//     ... more work for `compute` ...
//     comm.wait(compute, reduced);                    // from here on `compute` sees the result
//   Before  The group begins when all that `compute` was given before group_begin() has finished: what it reads is
//           there, what it overwrites is no longer read. So begin a group after the kernels that write its input were
//           enqueued; no other event is needed.
//   After   From group_end() on until wait() or sync(), the memory of the group belongs to the communicator: what it
//           writes must be neither read nor written, what it reads must not be written. Groups run one after the other:
//           to wait for one waits for all before it.
//   Within  The operations of one group may run in any order and at once: none may touch memory that another one
//           writes.
//
// The sum over ranks: all_reduce IS reduce_scatter and then all_gather, so that a run that keeps shards (ZeRO) sums
// exactly as one that does not. Over MPI, on threads and alone the order is rank 0 + rank 1 + ..., in float (double in
// double), rounded once to the type; over NCCL it is that of NCCL's algorithm, which depends on the number of elements
// and the machines but not on which of the two stages asked for it. Every rank gets the same bits in any case.
//
// Parts: split() makes a communicator of some of the ranks, with the same contracts. All of a rank's use one stream, so
// that the order of calls, the same on all ranks, is the order of groups, and no two of them wait for each other; but
// who needs the result of one in another waits for it, as for any other use.
//
// The control plane moves a few numbers and texts between hosts, at once and blocking. It may be used while device
// collectives are under way.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "llmc/comm/comm_stream.h"

namespace llmc {

// The part of an array that one rank owns. Element types do not matter: a rank owns the same elements of bf16
// parameters and of their fp32 master weights.
struct ShardRange {
    std::int64_t first = 0, size = 0;
};
// Every shard starts at a multiple of this, that is of kTensorAlignment bytes in any type, if the array does.
inline constexpr std::int64_t kShardMultiple = kernels::kTensorAlignment / sizeof(kernels::bf16);
// All shards have ceil(elements / size) elements, rounded up to kShardMultiple, as far as there are that many: the last
// ones may be shorter or empty. Arrays of a multiple of kShardMultiple * size elements have equal shards, which NCCL
// moves in one operation instead of one per rank.
ShardRange shard_of(std::int64_t elements, int rank, int size);

// A point in the communication stream, behind one group. The default lies before everything.
struct CommEvent {
    std::int64_t number = 0;
};

enum class ElementType { fp32, bf16, fp64, byte };
template <class T>
inline constexpr ElementType element_of = std::is_same_v<T, float>           ? ElementType::fp32
                                      : std::is_same_v<T, kernels::bf16> ? ElementType::bf16
                                      : std::is_same_v<T, double>        ? ElementType::fp64
                                                                         : ElementType::byte;
constexpr std::int64_t bytes_of(ElementType element) {
    constexpr std::int64_t kBytes[] = {4, 2, 8, 1};
    return kBytes[int(element)];
}

// One device collective, as it is handed to an implementation.
struct Collective {
    enum class Kind { reduce_scatter, all_gather, all_to_all, broadcast } kind;
    ElementType element;
    // of the whole array: reduce_scatter's input, all_gather's output, both of all_to_all, broadcast's data
    std::int64_t elements;
    std::byte* out;
    const std::byte* in;
    int root = 0;
};

enum class HostReduction { sum, min, max };

class Communicator {
public:
    virtual ~Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    int local_rank() const { return place_.local_rank; }  // among the ranks of this machine: chooses the GPU
    int node() const { return place_.node; }  // a number that the ranks of this machine have in common, and no others
    virtual std::string describe() const = 0;       // for the log

    // A communicator of the ranks that give the same color, in their order here. Every rank calls it, with no device
    // collective that it has not waited for. It goes before this one, which counts its bytes, too.
    virtual std::unique_ptr<Communicator> split(int color) = 0;

    // ---- device collectives, T = float, bf16 or double, without a sum std::byte too. Arrays start at a multiple of 64
    // bytes and are equally long on every rank.
    void group_begin(device::StreamRef compute);
    CommEvent group_end();
    // mine = the sum of this rank's shard over all ranks; `mine` may be that shard of `whole`.
    template <class T> void reduce_scatter(std::span<T> mine, std::type_identity_t<std::span<const T>> whole) {
        reduce_scatter(element_of<T>, reinterpret_cast<std::byte*>(mine.data()), mine.size(), as_bytes(whole),
                       whole.size());
    }
    // whole = the shards of all ranks; `mine`, this rank's, may be its place in `whole`.
    template <class T> void all_gather(std::span<T> whole, std::type_identity_t<std::span<const T>> mine) {
        all_gather(element_of<T>, reinterpret_cast<std::byte*>(whole.data()), whole.size(), as_bytes(mine),
                   mine.size());
    }
    // data = the sum of `data` over all ranks.
    template <class T> void all_reduce(std::span<T> data) {
        all_reduce(element_of<T>, reinterpret_cast<std::byte*>(data.data()), data.size());
    }
    // Both have one part per rank, all equally long and at a multiple of 64 bytes: part r of `out` on rank s = part s
    // of `in` on rank r. They lie apart.
    template <class T> void all_to_all(std::span<T> out, std::type_identity_t<std::span<const T>> in) {
        all_to_all(element_of<T>, reinterpret_cast<std::byte*>(out.data()), out.size(), as_bytes(in), in.size());
    }
    // data = `data` of rank `root`.
    template <class T> void broadcast(std::span<T> data, int root) {
        broadcast(element_of<T>, reinterpret_cast<std::byte*>(data.data()), data.size(), root);
    }

    // What `compute` is given from now on sees the results of the groups up to `event`. Waits on a CPU only.
    virtual void wait(device::StreamRef compute, CommEvent event) = 0;
    // The same for the host, which waits. Both, and group_end(), throw the Error of a group that has failed by now.
    virtual void sync(CommEvent event) = 0;
    // How long groups took and compute waited for them; empty where that is not known.
    virtual std::optional<CommTimes> times() const { return std::nullopt; }
    // What this rank sends to others in all groups so far, in bytes, each counted in group_end() by a formula: of N
    // bytes on R ranks, reduce_scatter and all_to_all send N less this rank's shard, all_gather R - 1 times that shard,
    // broadcast R - 1 times N from its root and 0 from others. So all_reduce sends 2 (R - 1) / R N where shards are
    // equal, as a ring does and ranks over MPI do. The control plane does not count.
    std::int64_t bytes_sent() const { return bytes_sent_; }

    // Ends every use of memory by device collectives: waits for them and aborts if one has failed, or with `giving_up`
    // returns soon, with results undefined and no way on.
    virtual void settle(bool giving_up) noexcept = 0;

    // ---- control plane
    // element by element; every rank gets the result
    virtual void host_reduce(std::span<std::int64_t> values, HostReduction reduction) = 0;
    std::int64_t host_reduce(std::int64_t value, HostReduction reduction) {
        host_reduce(std::span(&value, 1), reduction);
        return value;
    }
    // of all ranks, by rank; every rank gets them
    virtual std::vector<std::string> host_gather(std::string_view mine) = 0;
    // of the hosts: says nothing of device collectives
    virtual void barrier() = 0;

    // Ends the program on every rank within seconds, with this exit code where the launcher passes it on. Prints
    // "error: rank R on HOST: REASON" once; when several ranks fail at once, some may be ended before they print
    // theirs. main() calls it for an exception that leaves the run. Ranks that are threads, in tests,
    // throw it instead.
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
    Communicator* whole() const { return whole_; }  // that this one is a part of; nullptr: none

    // A group: begin_group(), one or two calls of enqueue() with operations that do not depend on each other,
    // end_group().
    virtual void begin_group(device::StreamRef compute) = 0;
    virtual void enqueue(std::span<const Collective> operations) = 0;
    virtual CommEvent end_group() = 0;

private:
    template <class T> static const std::byte* as_bytes(std::span<const T> span) {
        return reinterpret_cast<const std::byte*>(span.data());
    }
    void require_open(const std::string& operation, const std::byte* array, std::int64_t elements) const;
    std::int64_t bytes_sent_in(const Collective& operation) const;
    void add_sharded(const Collective& operation, std::int64_t mine_size);
    void reduce_scatter(ElementType element, std::byte* mine, std::int64_t mine_size, const std::byte* whole,
                        std::int64_t elements);
    void all_gather(ElementType element, std::byte* whole, std::int64_t elements, const std::byte* mine,
                    std::int64_t mine_size);
    void all_reduce(ElementType element, std::byte* data, std::int64_t elements);
    void all_to_all(ElementType element, std::byte* out, std::int64_t out_elements, const std::byte* in,
                    std::int64_t elements);
    void broadcast(ElementType element, std::byte* data, std::int64_t elements, int root);

    int rank_, size_;
    Place place_;
    Communicator* whole_;
    std::int64_t bytes_sent_ = 0;
    bool in_group_ = false;
    device::StreamRef compute_ = nullptr;
    std::vector<Collective> first_, second_;  // the second half of all_reduce needs the first one
};

// Of this machine, as messages name it.
std::string host_name();

// How many processes the launcher started, as the environment tells, and what told it. 1 without a launcher.
struct Launch {
    int processes = 1;
    std::string variable;
};
Launch launched_processes();

// node() of every rank, by rank; every rank calls it. And how many ranks each has: throws Error where some have more
// than others.
std::vector<int> nodes_of(Communicator& ranks);
int ranks_of_node(std::span<const int> nodes);

// The communicator of this process: one rank alone, which needs neither launcher nor MPI, else MPI. Call it before the
// device is chosen: local_rank() says which. chunk_bytes: how much goes to one rank at a time; 0 chooses.
// ranks_of_node: so many neighbours count as a machine; 0: MPI knows.
std::unique_ptr<Communicator> open_communicator(std::int64_t chunk_bytes = 0, int ranks_of_node = 0);
// Device collectives over NCCL; the control plane stays `control`. Call it when the device was chosen, one GPU for each
// rank.
std::unique_ptr<Communicator> over_nccl(std::shared_ptr<Communicator> control);
// Empty where this build has it, else what it lacks.
std::string mpi_lacks();
std::string nccl_lacks();

// The parts of open_communicator().
std::unique_ptr<Communicator> alone();
// throws Error in a build without MPI
std::unique_ptr<Communicator> open_mpi(const Launch& launch, std::int64_t chunk_bytes, int ranks_of_node);

}  // namespace llmc
