// communicator_nccl.cpp - device collectives over NCCL, one GPU per rank; another communicator remains the control
// plane
//
// A collective of shards is one NCCL operation; if the last shard is longer (shard_of), a reduce or a broadcast of that
// rest follows in the same launch.
// The order of summation is NCCL's: it depends on the number of elements and the machines. reduce_scatter alone and as
// the first half of all_reduce is the same call, so the order does not depend on the ZeRO stage.
//
// NCCL reports failures of the network or of another process only on request (ncclCommGetAsyncError): a watchdog thread
// polls it and ends the job.
#include <nccl.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "kernels/device/checked_cuda.h"
#include "llmc/base/number_text.h"
#include "llmc/comm/comm_stream.h"
#include "llmc/comm/communicator.h"

namespace llmc {
namespace {

using namespace std::chrono_literals;
using ::fault_of;

std::string fault_of(ncclResult_t status) {
    return status == ncclSuccess ? "" : std::string(ncclGetErrorString(status)) + ", " + ncclGetLastError(nullptr);
}

ncclDataType_t type_of(ElementType element) {
    return element == ElementType::fp32   ? ncclFloat32
           : element == ElementType::bf16 ? ncclBfloat16
                                          : ncclUint8;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
device::Memory nccl_memory(std::size_t bytes, std::function<void()> before_free = [] {}) {
    void* data = nullptr;
    CHECKED(ncclMemAlloc(&data, bytes));
    return {static_cast<std::byte*>(data), bytes, [before_free = std::move(before_free)](std::byte* allocated) {
        cudaDeviceSynchronize();  // kernels may use the memory: cudaFree waits for them, ncclMemFree need not
        before_free();
        ncclMemFree(allocated);
    }};
}

// How far it rounds up, which depends on version and GPU.
std::size_t measured_rounding() {
    std::size_t before = 0, after = 0, total = 0;
    CHECKED(cudaMemGetInfo(&before, &total));
    const device::Memory byte = nccl_memory(1);
    CHECKED(cudaMemGetInfo(&after, &total));
    return before - std::min(before, after);
}

// Symmetric windows, of NCCL 2.27, are made by all ranks together; without support by GPU and topology the result is
// null. NCCL_WIN_ENABLE=0 with NCCL_LOCAL_REGISTER=0 disables registration; with NCCL_CUMEM_ENABLE=0 ncclMemAlloc is
// cudaMalloc, too.
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
using Registration = ncclWindow_t;
void register_memory(ncclComm_t nccl, void* data, std::size_t bytes, Registration* to) {
    CHECKED(ncclCommWindowRegister(nccl, data, bytes, to, NCCL_WIN_COLL_SYMMETRIC));
}
void end_registration(ncclComm_t nccl, Registration of) { ncclCommWindowDeregister(nccl, of); }
#else
using Registration = void*;
void register_memory(ncclComm_t nccl, void* data, std::size_t bytes, Registration* to) {
    CHECKED(ncclCommRegister(nccl, data, bytes, to));
}
void end_registration(ncclComm_t nccl, Registration of) { ncclCommDeregister(nccl, of); }
#endif
#else
std::size_t measured_rounding() { return 0; }
#endif

// Combines the NCCL calls made during its lifetime into one launch, which finish() starts. Without finish(), during an
// exception, the destructor ends the group and ignores the result.
class NcclGroup {
public:
    NcclGroup() { CHECKED(ncclGroupStart()); }
    ~NcclGroup() {
        if (open_) ncclGroupEnd();
    }
    NcclGroup(const NcclGroup&) = delete;
    NcclGroup& operator=(const NcclGroup&) = delete;
    void finish() {
        open_ = false;
        CHECKED(ncclGroupEnd());
    }

private:
    bool open_ = true;
};

class Nccl final : public Communicator {
public:
    // `whole`: the communicator that this is a part of; nullptr for that of the run.
    explicit Nccl(std::shared_ptr<Communicator> control, Nccl* whole = nullptr)
        : Communicator(control->rank(), control->size(), {control->local_rank(), control->node()},
                       whole ? static_cast<Communicator*>(whole) : control.get()),
          control_(std::move(control)),
          stream_(whole ? whole->stream_ : std::make_shared<CommStream>()) {
        ncclUniqueId id{};
        if (rank() == 0) CHECKED(ncclGetUniqueId(&id));
        const std::string sent = control_->host_gather(rank() == 0 ? std::string_view(id.internal, sizeof id.internal)
                                                                   : std::string_view())[0];
        require(sent.size() == sizeof id.internal, "the size of NCCL's identifier from rank 0", sent.size(),
                std::to_string(sizeof id.internal));
        std::memcpy(id.internal, sent.data(), sizeof id.internal);
        CHECKED(ncclCommInitRank(&nccl_, size(), id, rank()));
        watchdog_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
    }
    ~Nccl() override {
        end_all(leaves_alone());
        stop_watchdog();
        if (nccl_) ncclCommDestroy(nccl_);
    }

    std::string describe() const override {
        int version = 0;
        ncclGetVersion(&version);
        return counted(size(), "rank") + " over NCCL " + std::to_string(version / 10000) + "." +
               std::to_string(version / 100 % 100) + "." + std::to_string(version % 100) + ", started by " +
               control_->describe();
    }

    std::size_t allocation_rounding() const override { return rounding_; }
    void wait(device::StreamRef compute, CommEvent event) override { stream_->wait(compute, event.number); }
    void sync(CommEvent event) override { stream_->sync(event.number); }
    // With a new NCCL identifier: not every supported NCCL version has ncclCommSplit.
    std::unique_ptr<Communicator> split(int color) override {
        sync({stream_->point()});
        return std::make_unique<Nccl>(control_->split(color), this);
    }
    std::unique_ptr<Communicator> duplicate_control() override { return control_->duplicate_control(); }
    std::optional<CommTimes> times() const override { return stream_->times(); }
    void end_all(bool abandon) noexcept override {
        if (abandon) {
            stop_watchdog();  // it must not use the communicator any more
            // ends kernels that wait for other ranks, so that the stream drains
            if (nccl_) ncclCommAbort(std::exchange(nccl_, nullptr));
            whole()->end_all(true);
            return;
        }
        try {
            if (nccl_) stream_->sync(stream_->point());
        } catch (const std::exception& error) {
            abort(error.what(), 1);
        }
    }

    using Communicator::host_reduce;
    void host_reduce(std::span<std::int64_t> values, HostReduction reduction) override {
        control_->host_reduce(values, reduction);
    }
    std::vector<std::string> host_gather(std::string_view mine) override { return control_->host_gather(mine); }
    void barrier() override { control_->barrier(); }
    [[noreturn]] void abort(std::string_view reason, int exit_code) override {
        control_->abort(reason, exit_code);
        std::_Exit(exit_code);  // g++ does not know that the virtual function never returns
    }

private:
    void begin_group(device::StreamRef compute) override {
        require(nccl_, "a group of collectives", "started after another one was abandoned", "none");
        stream_->after(compute);
    }
    CommEvent end_group() override { return {stream_->point()}; }
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
    device::Memory allocate(std::size_t bytes) override {
        if (bytes == 0) return {};
        const auto registration = std::make_shared<Registration>();
        device::Memory memory = nccl_memory(bytes, [this, registration] {
            if (nccl_ && *registration) end_registration(nccl_, *registration);
        });
        register_memory(nccl_, memory.data(), bytes, registration.get());
        return memory;
    }
#endif
    void enqueue(std::span<const Collective> operations) override {
        stream_->enqueue([&](device::StreamRef stream) {
            NcclGroup group;
            for (const Collective& op : operations) switch (op.kind) {
                    case Collective::Kind::reduce_scatter: reduce_scatter(op, stream); break;
                    case Collective::Kind::all_gather: all_gather(op, stream); break;
                    case Collective::Kind::all_to_all: all_to_all(op, stream); break;
                    case Collective::Kind::broadcast:
                        CHECKED(ncclBroadcast(op.in, op.out, op.elements, type_of(op.element), op.root, nccl_, stream));
                        break;
                    case Collective::Kind::reduce:
                        CHECKED(ncclReduce(op.in, op.out, op.elements, type_of(op.element), ncclSum, op.root, nccl_,
                                           stream));
                        break;
                }
            group.finish();
        });
    }

    // The size of all shards but the last, which also has the rest.
    std::int64_t each_of(const Collective& op) const { return op.elements / size() / kShardMultiple * kShardMultiple; }

    void reduce_scatter(const Collective& op, device::StreamRef stream) {
        const ncclDataType_t type = type_of(op.element);
        const std::int64_t each = each_of(op), equal = each * size(), width = bytes_of(op.element);
        if (each > 0) CHECKED(ncclReduceScatter(op.in, op.out, each, type, ncclSum, nccl_, stream));
        if (equal < op.elements)
            CHECKED(ncclReduce(op.in + equal * width, op.out + each * width, op.elements - equal, type, ncclSum,
                               size() - 1, nccl_, stream));
    }

    void all_gather(const Collective& op, device::StreamRef stream) {
        const ncclDataType_t type = type_of(op.element);
        const std::int64_t each = each_of(op), equal = each * size(), width = bytes_of(op.element);
        if (each > 0) CHECKED(ncclAllGather(op.in, op.out, each, type, nccl_, stream));
        if (equal < op.elements)
            CHECKED(ncclBroadcast(op.in + each * width, op.out + equal * width, op.elements - equal, type, size() - 1,
                                  nccl_, stream));
    }

    void all_to_all(const Collective& op, device::StreamRef stream) {
        const std::int64_t part = op.elements / size() * bytes_of(op.element);
        for (int peer = 0; peer < size(); ++peer) {
            CHECKED(ncclSend(op.in + peer * part, part, ncclUint8, peer, nccl_, stream));
            CHECKED(ncclRecv(op.out + peer * part, part, ncclUint8, peer, nccl_, stream));
        }
    }

    void watch(const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any stopped;
        std::unique_lock lock(mutex);
        while (!stopped.wait_for(lock, stop, 200ms, [&] { return stop.stop_requested(); })) {
            ncclResult_t asynchronous = ncclSuccess;
            const ncclResult_t query = ncclCommGetAsyncError(nccl_, &asynchronous);
            const ncclResult_t status = query != ncclSuccess ? query : asynchronous;
            if (status != ncclSuccess && status != ncclInProgress)
                control_->abort(std::string("NCCL: ") + ncclGetErrorString(status) + ", " + ncclGetLastError(nccl_), 1);
        }
    }
    void stop_watchdog() {
        watchdog_.request_stop();
        if (watchdog_.joinable()) watchdog_.join();
    }

    std::shared_ptr<Communicator> control_;
    const std::shared_ptr<CommStream> stream_;
    const std::size_t rounding_ = measured_rounding();
    ncclComm_t nccl_ = nullptr;

    std::jthread watchdog_;
};

}  // namespace

std::string why_no_nccl() { return {}; }

std::unique_ptr<Communicator> over_nccl(std::shared_ptr<Communicator> control) {
    return std::make_unique<Nccl>(std::move(control));
}

}  // namespace llmc
