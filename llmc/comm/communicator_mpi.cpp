// communicator_mpi.cpp - ranks as MPI processes: on CPUs, and on GPUs through page-locked host memory, so that ranks
// may share a GPU
//
// Device collectives are messages between pairs of ranks, in chunks that bound the staging memory and keep every count
// far below MPI's 31 bits; kernels/sum_ranks.h sums. They run on a CommStream. Open MPI makes progress only within its
// calls, so waiting code calls MPI_Test repeatedly.
//
// Threads: the control planes and the communication stream use MPI concurrently. MPI_THREAD_SERIALIZED, which every MPI
// supports, and a mutex are enough as long as no call blocks while it holds the mutex: otherwise rank 0 could wait in
// the control plane for a rank whose communication stream waits for that of rank 0. So every operation is non-blocking
// and is tested until it completes, and each plane has its own MPI communicator. Only split() blocks, when no operation
// is in progress.
#include <algorithm>
#include <chrono>
#include <exception>
#include <iostream>
#include <sstream>
#include <thread>

#include "kernels/device/memory.h"
#include "kernels/sum_ranks.h"
#include "llmc/base/number_text.h"
#include "llmc/comm/chunks.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/mpi_process.h"

namespace llmc {
namespace {

using kernels::bf16;
using namespace std::chrono_literals;

// all_reduce of 256 MiB between 2 processes on 2 cores busy with other work (Zen 5), best of 5, three rounds: 39-43 ms
// in chunks of 256 KiB, 23-126 with 1 MiB, 19-20 with 4 MiB (26-75 in a later run), 74-106 with 16 MiB, 43-103 with 64
// MiB. With many ranks kStagingBytes limits the chunk size.
constexpr std::int64_t kLargestChunk = std::int64_t(4) << 20, kStagingBytes = std::int64_t(32) << 20;
constexpr std::int64_t kChunkMultiple = kShardMultiple * 4;  // bytes: whole, aligned elements of every type

// longer than ranks of equal speed wait: the slowest step measured here, 4 x 1024 tokens of GPT-2 124M, took 8 s
constexpr auto kLongWait = 15s;

class Mpi final : public Communicator {
public:
    Mpi(std::shared_ptr<MpiProcess> process, std::int64_t chunk_bytes, int ranks_per_node)
        : Communicator(process->rank, process->size,
                       ranks_per_node > 0
                           ? Place{.local_rank = process->rank % ranks_per_node, .node = process->rank / ranks_per_node}
                           : Place{.local_rank = process->local_rank, .node = process->node}),
          process_(std::move(process)),
          control_(process_->control),
          payload_(process_->payload) {
        const std::int64_t wanted = chunk_bytes > 0 ? chunk_bytes : std::min(kLargestChunk, kStagingBytes / size());
        chunk_bytes_ = std::clamp(wanted / kChunkMultiple * kChunkMultiple, kChunkMultiple, std::int64_t(1) << 30);
    }
    // A part of `whole`, made by split().
    Mpi(Mpi& whole, MPI_Comm control, MPI_Comm payload, int rank, int size)
        : Communicator(rank, size, whole.Communicator::place(), &whole),
          process_(whole.process_),
          is_part_(true),
          control_(control),
          payload_(payload) {}
    ~Mpi() override {
        end_all(leaves_alone());
        if (!is_part_ || leaving_) return;
        const std::lock_guard lock(mpi_);
        MPI_Comm_free(&control_);
        MPI_Comm_free(&payload_);
    }

    std::unique_ptr<Communicator> split(int color) override {
        if (stream_) stream_->sync(stream_->point());
        MPI_Comm control, payload;
        int part_rank = 0, part_size = 1;
        const std::lock_guard lock(mpi_);
        CHECKED(MPI_Comm_split(control_, color, rank(), &control));
        CHECKED(MPI_Comm_dup(control, &payload));
        CHECKED(MPI_Comm_rank(control, &part_rank));
        CHECKED(MPI_Comm_size(control, &part_size));
        return std::make_unique<Mpi>(*this, control, payload, part_rank, part_size);
    }

    std::string describe() const override {
        char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
        int length = 0;
        {
            const std::lock_guard lock(mpi_);
            MPI_Get_library_version(text, &length);
        }
        std::string version(text);
        return counted(size(), "rank") + " over MPI (" + version.substr(0, version.find_first_of(",\n")) + ")";
    }

    void wait(device::StreamRef compute, CommEvent event) override {
        if (stream_) stream_->wait(compute, event.number);
    }
    void sync(CommEvent event) override {
        if (stream_) stream_->sync(event.number);
    }
    std::optional<CommTimes> times() const override {
        if (size() == 1) return {};
        return stream_ ? stream_->times() : CommTimes{};
    }
    void end_all(bool abandon) noexcept override {
        if (abandon) {
            process_->orderly = false;
            leaving_ = true;
            stream_.reset();
            return;
        }
        try {
            if (stream_) stream_->sync(stream_->point());
        } catch (const std::exception& error) {
            abort(error.what(), 1);
        }
    }

    using Communicator::host_reduce;
    void host_reduce(std::span<std::int64_t> values, HostReduction reduction) override {
        const MPI_Op op = reduction == HostReduction::sum ? MPI_SUM : MPI_MAX;
        complete([&](MPI_Request* request) {
            CHECKED(
                MPI_Iallreduce(MPI_IN_PLACE, values.data(), int(values.size()), MPI_INT64_T, op, control_, request));
        });
    }
    std::vector<std::string> host_gather(std::string_view mine) override {
        std::vector<int> sizes(size()), places(size());
        const int size_of_mine = int(mine.size());
        complete([&](MPI_Request* request) {
            CHECKED(MPI_Iallgather(&size_of_mine, 1, MPI_INT, sizes.data(), 1, MPI_INT, control_, request));
        });
        std::int64_t total = 0;
        for (int rank = 0; rank < size(); total += sizes[rank++]) places[rank] = int(total);
        require(total < (std::int64_t(1) << 30), "the texts of all ranks together, in bytes,", total, "less than 2^30");
        std::string all(total, '\0');
        complete([&](MPI_Request* request) {
            CHECKED(MPI_Iallgatherv(mine.data(), size_of_mine, MPI_BYTE, all.data(), sizes.data(), places.data(),
                                    MPI_BYTE, control_, request));
        });
        std::vector<std::string> texts;
        for (int rank = 0; rank < size(); ++rank) texts.push_back(all.substr(places[rank], sizes[rank]));
        return texts;
    }
    void barrier() override {
        complete([&](MPI_Request* request) { CHECKED(MPI_Ibarrier(control_, request)); });
    }

    [[noreturn]] void abort(std::string_view reason, int exit_code) override {
        // If all ranks fail in the same way, rank 0 prints the error and ends the others before they print it too, also
        // on a machine that is busy.
        if (rank_in_run() > 0) std::this_thread::sleep_for(1500ms);
        std::ostringstream line;
        line << "error: rank " << rank_in_run() << " on " << host_name() << ": " << reason << "\n";
        std::cout << std::flush;
        std::cerr << line.str() << std::flush;
        // If MPI itself hangs, a process that exits without MPI_Finalize also makes the launcher end the others.
        std::thread([exit_code] {
            std::this_thread::sleep_for(2s);
            std::_Exit(exit_code);
        }).detach();
        const std::lock_guard lock(mpi_);
        MPI_Abort(MPI_COMM_WORLD, exit_code);
        std::_Exit(exit_code);
    }

private:
    // Bytes in device memory that are sent to, or received from, one rank.
    struct Message {
        int peer;
        std::byte* device;
        std::int64_t bytes;
        std::byte* host = nullptr;  // the host copy that MPI reads or writes
    };

    void begin_group(device::StreamRef compute) override {
        require(!leaving_, "a group of collectives", "started after another one was abandoned", "none");
        process_->open_stream();
        stream_->after(compute);
    }
    CommEvent end_group() override { return {stream_->point()}; }
    // Sums first, then copies: the operations are independent of each other. In a round every owner has one chunk.
    void enqueue(std::span<const Collective> operations) override {
        Chunks sums(size(), chunk_bytes_), copies(size(), chunk_bytes_);
        for (const Collective& op : operations)
            switch (op.kind) {
                case Collective::Kind::reduce_scatter:
                case Collective::Kind::reduce: sums.add(op); break;
                case Collective::Kind::all_gather:
                case Collective::Kind::broadcast: copies.add(op); break;
                case Collective::Kind::all_to_all: break;
            }
        for (std::size_t round = 0; round < sums.rounds(); ++round) sum(sums, round);
        for (std::size_t round = 0; round < copies.rounds(); ++round) copy(copies, round);
        for (const Collective& op : operations)
            if (op.kind == Collective::Kind::all_to_all) all_to_all(op);
    }

    // The other ranks, starting with the next one, so that ranks do not all send to the same one first.
    template <class Visit> void for_peers(Visit&& visit) const {
        for (int step = 1; step < size(); ++step) visit((rank() + step) % size());
    }

    void sum(const Chunks& all, std::size_t round) {
        const Chunk* const mine = all.of(rank(), round);
        std::vector<Message> sends, receives;
        for_peers([&](int peer) {
            if (const Chunk* const theirs = all.of(peer, round))
                sends.push_back({peer, theirs->in, theirs->bytes});
            if (mine) receives.push_back({peer, gathered_.data() + peer * chunk_bytes_, mine->bytes});
        });
        transfer(std::move(sends), std::move(receives));
        if (!mine) return;
        if (mine->element == ElementType::bf16) sum_as<bf16>(*mine);
        else sum_as<float>(*mine);
    }
    template <class T> void sum_as(const Chunk& mine) {
        const std::size_t elements = mine.bytes / sizeof(T);
        const std::int64_t stride = chunk_bytes_ / std::int64_t(sizeof(T));
        const kernels::SumRanks<T> sum{
            .out = {reinterpret_cast<T*>(mine.out), elements},
            .own = {reinterpret_cast<const T*>(mine.in), elements},
            .others = {reinterpret_cast<const T*>(gathered_.data()), std::size_t(stride * size())},
            .stride = stride,
            .rank = rank(),
            .ranks = size()};
        stream_->enqueue([sum](device::StreamRef stream) { kernels::sum_ranks(sum, stream); });
    }

    void copy(const Chunks& all, std::size_t round) {
        const Chunk* const mine = all.of(rank(), round);
        std::vector<Message> sends, receives;
        for_peers([&](int peer) {
            if (mine) sends.push_back({peer, mine->in, mine->bytes});
            if (const Chunk* const theirs = all.of(peer, round))
                receives.push_back({peer, theirs->out, theirs->bytes});
        });
        transfer(std::move(sends), std::move(receives));
        if (mine) copy_own(mine->out, mine->in, mine->bytes);
    }

    void all_to_all(const Collective& op) {
        const std::int64_t part = op.elements / size() * bytes_of(op.element);
        copy_own(op.out + rank() * part, op.in + rank() * part, part);
        for (std::int64_t offset = 0; offset < part; offset += chunk_bytes_) {
            const std::int64_t bytes = std::min(chunk_bytes_, part - offset);
            std::vector<Message> sends, receives;
            for_peers([&](int peer) {
                sends.push_back({peer, const_cast<std::byte*>(op.in) + peer * part + offset, bytes});
                receives.push_back({peer, op.out + peer * part + offset, bytes});
            });
            transfer(std::move(sends), std::move(receives));
        }
    }

    void copy_own(std::byte* to, const std::byte* from, std::int64_t bytes) {
        if (to != from)
            stream_->enqueue([=](device::StreamRef stream) { device::copy_on_device(to, from, bytes, stream); });
    }

    // Sets the host addresses of messages: on a CPU the device addresses, else chunks of the page-locked memory,
    // starting at number `chunk`. Data sent to several ranks takes one chunk.
    void place(std::vector<Message>& messages, int chunk) {
        for (std::size_t i = 0; i < messages.size(); ++i) {
            if (device::memory_is_host_memory()) messages[i].host = messages[i].device;
            else if (i > 0 && messages[i].device == messages[i - 1].device) messages[i].host = messages[i - 1].host;
            else messages[i].host = pinned_.data() + chunk++ * chunk_bytes_;
        }
    }
    void fetch(const std::vector<Message>& messages) {
        if (device::memory_is_host_memory()) return;
        for (std::size_t i = 0; i < messages.size(); ++i)
            if (i == 0 || messages[i].host != messages[i - 1].host)
                stream_->enqueue([message = messages[i]](device::StreamRef stream) {
                    device::copy_to_host(message.host, message.device, message.bytes, stream);
                });
    }
    void deliver(const std::vector<Message>& messages) {
        if (device::memory_is_host_memory()) return;
        for (const Message& message : messages)
            stream_->enqueue([message](device::StreamRef stream) {
                device::copy_to_device(message.device, message.host, message.bytes, stream);
            });
    }

    // Enqueues all sends and receives.
    void transfer(std::vector<Message> sends, std::vector<Message> receives) {
        place(sends, 0);
        place(receives, size());
        fetch(sends);
        stream_->enqueue_host([this, sends = std::move(sends), receives] {
            std::vector<MPI_Request> requests(sends.size() + receives.size(), MPI_REQUEST_NULL);
            {
                const std::lock_guard lock(mpi_);
                auto request = requests.begin();
                for (const Message& message : receives)
                    CHECKED(
                        MPI_Irecv(message.host, int(message.bytes), MPI_BYTE, message.peer, 0, payload_, &*request++));
                for (const Message& message : sends)
                    CHECKED(
                        MPI_Isend(message.host, int(message.bytes), MPI_BYTE, message.peer, 0, payload_, &*request++));
            }
            finish(requests, receives, sends);
        });
        deliver(receives);
    }

    // Starts one operation and waits until it completes.
    template <class Begin> void complete(Begin&& begin) {
        std::vector<MPI_Request> requests(1, MPI_REQUEST_NULL);
        {
            const std::lock_guard lock(mpi_);
            begin(&requests[0]);
        }
        finish(requests);
    }

    // Waits for all requests: those of `receives`, then those of `sends`; or that of a collective operation.
    void finish(std::vector<MPI_Request>& requests, std::span<const Message> receives = {},
                std::span<const Message> sends = {}) {
        std::vector<MPI_Status> statuses(requests.size());
        const auto began = std::chrono::steady_clock::now();
        while (true) {
            int done = 0;
            {
                const std::lock_guard lock(mpi_);
                const int status = MPI_Testall(int(requests.size()), requests.data(), &done, statuses.data());
                if (status == MPI_ERR_IN_STATUS)
                    for (const MPI_Status& one : statuses)
                        if (one.MPI_ERROR != MPI_ERR_PENDING)
                            throw_fault(fault_of(one.MPI_ERROR), "a message between ranks", __FILE__, __LINE__);
                throw_fault(fault_of(status), "MPI_Testall", __FILE__, __LINE__);
            }
            if (done) return;
            if (leaving_)
                throw Error("rank " + std::to_string(rank_in_run()) + " leaves while a collective is in progress",
                            Blame::runtime);
            // A rank that waits for a slower one soon yields its core to compute threads. Summing 1000 floats over 2
            // ranks took 190-210 us this way, 165-200 if it never slept, 540-630 if it slept immediately.
            const auto waited = std::chrono::steady_clock::now() - began;
            if (waited < 1ms) std::this_thread::yield();
            else std::this_thread::sleep_for(20us);
            if (waited > kLongWait && rank_in_run() == 0 && !warned_.exchange(true))
                warn_of_wait(requests, receives, sends);
        }
    }

    // Without this warning, a run with a stopped or unreachable rank looks as if it were computing. Printed once, only
    // by rank 0: the others legitimately wait for rank 0 while it saves and samples.
    void warn_of_wait(const std::vector<MPI_Request>& requests, std::span<const Message> receives,
                      std::span<const Message> sends) {
        std::string peer_name = "another rank";
        for (std::size_t i = receives.size() + sends.size(); i-- > 0;) {
            int done = 0;
            {
                const std::lock_guard lock(mpi_);
                MPI_Request_get_status(requests[i], &done, MPI_STATUS_IGNORE);
            }
            const Message& message = i < receives.size() ? receives[i] : sends[i - receives.size()];
            if (!done) peer_name = "rank " + std::to_string(rank_in_run(message.peer));
        }
        std::ostringstream line;
        line << "note: rank 0 has waited " << kLongWait.count() << " s for " << peer_name
             << "; it is slow, stopped, or its machine cannot be reached\n";
        std::cerr << line.str() << std::flush;
    }

    // This rank's number in the run, for messages.
    int rank_in_run() const { return process_->rank; }
    int rank_in_run(int peer) const {
        MPI_Group part, run;
        int rank = peer;
        const std::lock_guard lock(mpi_);
        MPI_Comm_group(payload_, &part);
        MPI_Comm_group(MPI_COMM_WORLD, &run);
        MPI_Group_translate_ranks(part, 1, &peer, run, &rank);
        MPI_Group_free(&part);
        MPI_Group_free(&run);
        return rank;
    }

    std::shared_ptr<MpiProcess> process_;
    const bool is_part_ = false;
    MPI_Comm control_, payload_;
    // Shared with the other communicators of this process:
    std::int64_t& chunk_bytes_ = process_->chunk_bytes;
    std::mutex& mpi_ = process_->mpi;
    std::atomic<bool>&leaving_ = process_->leaving, &warned_ = process_->warned;
    device::Memory& gathered_ = process_->gathered;
    device::PinnedMemory& pinned_ = process_->pinned;
    std::optional<CommStream>& stream_ = process_->stream;
};

}  // namespace

std::string why_no_mpi() { return {}; }

std::unique_ptr<Communicator> open_mpi(const Launch& launch, std::int64_t chunk_bytes, int ranks_per_node) {
    return std::make_unique<Mpi>(std::make_shared<MpiProcess>(launch), chunk_bytes, ranks_per_node);
}

}  // namespace llmc
