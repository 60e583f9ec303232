// communicator.cpp - shards, groups and argument checks of all communicators; and the communicator of a single rank
#include "llmc/comm/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/device/memory.h"
#include "llmc/base/standard_streams.h"

namespace llmc {

ElementRange shard_of(std::int64_t elements, int rank, int size) {
    require(elements >= 0, "the number of elements to shard", elements, "at least 0");
    require(size >= 1 && rank >= 0 && rank < size, "the rank of a shard", rank,
            "one from 0 to the number of ranks - 1");
    const std::int64_t each = elements / (kShardMultiple * size) * kShardMultiple, first = each * rank;
    return {first, rank + 1 < size ? each : elements - first};
}

void Communicator::group_begin(device::StreamRef compute) {
    require(!in_group_, "group_begin()", "within a group", "one group at a time, each with its group_end()");
    in_group_ = true;
    all_leave() = false;
    compute_ = compute;
}

CommEvent Communicator::group_end() {
    require(in_group_, "group_end()", "outside a group", "a group_begin() before it");
    in_group_ = false;  // also if the code below throws: the next group then reports the same failure
    const auto first = std::exchange(first_, {}), second = std::exchange(second_, {});
    for (const auto* operations : {&first, &second})
        for (const Collective& operation : *operations)
            for (Communicator* counts = this; counts; counts = counts->whole_)
                counts->bytes_sent_ += bytes_sent_in(operation);
    begin_group(compute_);
    if (!first.empty()) enqueue(first);
    if (!second.empty()) enqueue(second);
    return end_group();
}

std::int64_t Communicator::bytes_sent_in(const Collective& op) const {
    const std::int64_t mine = shard_of(op.elements, rank_, size_).size, others = size_ - 1;
    switch (op.kind) {
        case Collective::Kind::reduce_scatter: return (op.elements - mine) * bytes_of(op.element);
        case Collective::Kind::all_gather: return others * mine * bytes_of(op.element);
        case Collective::Kind::all_to_all: return others * (op.elements / size_) * bytes_of(op.element);
        case Collective::Kind::broadcast: return rank_ == op.root ? others * op.elements * bytes_of(op.element) : 0;
        case Collective::Kind::reduce: break;
    }
    return rank_ == op.root ? 0 : op.elements * bytes_of(op.element);
}

namespace {
bool overlap(const std::byte* a, std::int64_t a_bytes, const std::byte* b, std::int64_t b_bytes) {
    return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}
}  // namespace

void Communicator::add(Collectives& to, Collective op, std::int64_t out_size, std::int64_t in_size) const {
    using Kind = Collective::Kind;
    const bool scatters = op.kind == Kind::reduce_scatter;
    constexpr const char* kNames[] = {"reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce"};
    const std::string name = kNames[int(op.kind)];
    op.elements = scatters ? in_size : out_size;
    const std::int64_t bytes = op.elements * bytes_of(op.element);
    require(in_group_, name, "outside a group", "a group_begin() before it");
    // An empty shard at the end of an array may have an unaligned address, which does not matter.
    for (const auto& [array, size] : {std::pair<const std::byte*, std::int64_t>(op.out, out_size), {op.in, in_size}})
        require(size == 0 || reinterpret_cast<std::uintptr_t>(array) % 64 == 0, "the address of an array in " + name,
                static_cast<const void*>(array), "a multiple of 64 bytes");
    if (scatters || op.kind == Kind::all_gather) {
        const std::string mine_is = name + (scatters ? "'s output" : "'s input");
        const std::byte *mine = scatters ? op.out : op.in, *whole = scatters ? op.in : op.out;
        const std::int64_t mine_size = scatters ? out_size : in_size, width = bytes_of(op.element);
        const ElementRange shard = shard_of(op.elements, rank_, size_);
        require(mine_size == shard.size, "the size of " + mine_is, mine_size,
                "that of this rank's shard, " + std::to_string(shard.size));
        require(mine == whole + shard.first * width || !overlap(mine, mine_size * width, whole, bytes), mine_is,
                std::string("another part of its ") + (scatters ? "input" : "output"),
                "this rank's shard of it, or separate memory");
    } else if (op.kind == Kind::all_to_all) {
        require(out_size == in_size, "the size of all_to_all's output", out_size, "the size of its input");
        require(op.elements % size_ == 0 && bytes / size_ % 64 == 0, "the size of all_to_all's input", op.elements,
                "one part per rank, each a multiple of 64 bytes");
        require(!overlap(op.out, bytes, op.in, bytes), "all_to_all's output", "within its input", "separate memory");
    } else {
        require(op.root >= 0 && op.root < size_, "the root of a " + name, op.root,
                "a rank, from 0 to " + std::to_string(size_ - 1));
    }
    if (op.elements > 0) to.push_back(op);
}

namespace {

// A collective is a copy or a no-op, on the compute stream.
class Alone final : public Communicator {
public:
    explicit Alone(Communicator* whole = nullptr) : Communicator(0, 1, {}, whole) {}
    std::string describe() const override { return "one rank"; }
    std::unique_ptr<Communicator> split(int) override { return std::make_unique<Alone>(this); }
    void wait(device::StreamRef, CommEvent) override {}
    void sync(CommEvent) override { device::sync(compute_); }
    void end_all(bool) noexcept override {
        try {
            device::sync(compute_);
        } catch (...) {  // a kernel's error: the next use of the stream throws it again
        }
    }
    void host_reduce(std::span<std::int64_t>, HostReduction) override {}
    std::vector<std::string> host_gather(std::string_view mine) override { return {std::string(mine)}; }
    void barrier() override {}
    [[noreturn]] void abort(std::string_view reason, int exit_code) override {
        print_stderr("error: " + std::string(reason));
        std::cout << std::flush;
        std::_Exit(exit_code);
    }

private:
    void begin_group(device::StreamRef compute) override { compute_ = compute; }
    void enqueue(std::span<const Collective> operations) override {
        for (const Collective& op : operations)
            if (op.out != op.in) device::copy_on_device(op.out, op.in, op.elements * bytes_of(op.element), compute_);
    }
    CommEvent end_group() override { return {}; }

    device::StreamRef compute_ = nullptr;
};

int number_in(const char* variable) {
    const char* text = std::getenv(variable);
    return text ? std::atoi(text) : 0;
}

}  // namespace

std::unique_ptr<Communicator> alone() { return std::make_unique<Alone>(); }

std::vector<int> nodes_of(Communicator& ranks) {
    std::vector<int> nodes;
    for (const std::string& node : ranks.host_gather(std::to_string(ranks.node()))) nodes.push_back(std::stoi(node));
    return nodes;
}

int ranks_per_node(std::span<const int> nodes) {
    std::map<int, int> counts;
    for (const int node : nodes) ++counts[node];
    const auto by_count = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto [fewest, most] = std::minmax_element(counts.begin(), counts.end(), by_count);
    require(fewest->second == most->second, "the number of ranks of a machine",
            std::to_string(fewest->second) + " on one and " + std::to_string(most->second) + " on another",
            "the same on all",
            "start equally many ranks on each, such as with mpirun --map-by ppr:" + std::to_string(fewest->second) +
                ":node");
    return most->second;
}

std::string host_name() {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    return name;
}

// Open MPI's mpirun; MPICH's mpirun and Slurm's PMI; srun. SLURM_NTASKS is also set in a batch script, outside srun:
// only PMIX_RANK shows that the process is a task.
Launch launched_processes() {
    for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
        if (const int processes = number_in(variable); processes > 0) return {processes, variable};
    if (const int processes = number_in("SLURM_NTASKS"); processes > 0 && std::getenv("PMIX_RANK"))
        return {processes, "SLURM_NTASKS"};
    return {};
}

std::unique_ptr<Communicator> open_communicator(std::int64_t chunk_bytes, int ranks_per_node) {
    const Launch launch = launched_processes();
    if (launch.processes > 1) return open_mpi(launch, chunk_bytes, ranks_per_node);
    return alone();
}

}  // namespace llmc
