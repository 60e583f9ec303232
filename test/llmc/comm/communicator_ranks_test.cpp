// communicator_ranks_test.cpp - properties of all communicators, and ranks as threads: every collective in every order
#include "llmc/comm/communicator.h"

#include <atomic>
#include <cstdlib>
#include <thread>

#include "llmc/comm/stream_times.h"
#include "test/support/communicator_local.h"
#include "test/support/communicator_suite.h"
#include "test/support/scratch_folder.h"
#include "test/support/support.h"

using namespace llmc;
using namespace test;
using namespace std::chrono_literals;

TEST_CASE("shards cover an array without overlap, start aligned, and all but the last are equal", "[communicator]") {
    for (const std::int64_t elements :
         std::vector<std::int64_t>{0, 1, 127, 128, 129, 1'000'003, 128 * 24, (std::int64_t(1) << 40) + 1})
        for (const int ranks : {1, 2, 3, 8, 1000}) {
            CAPTURE(elements, ranks);
            const std::int64_t each = shard_of(elements, 0, ranks).size;
            std::int64_t next = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                const ElementRange shard = shard_of(elements, rank, ranks);
                REQUIRE(shard.first == next);
                REQUIRE(shard.size >= each);
                REQUIRE(shard.size - each < (rank + 1 < ranks ? 1 : kShardMultiple * ranks));
                REQUIRE((shard.size == 0 || shard.first % kShardMultiple == 0));
                next += shard.size;
            }
            REQUIRE(next == elements);
            if (elements % (kShardMultiple * ranks) == 0) REQUIRE(each == elements / ranks);
        }
    REQUIRE_THROWS_WITH(shard_of(-1, 0, 1), Contains("elements to shard"));
    REQUIRE_THROWS_WITH(shard_of(1, 2, 2), Contains("rank"));
}

TEST_CASE("a single rank", "[communicator]") {
    const auto comm = alone();
    check_device_collectives(*comm, 1000);
    check_groups(*comm);
    check_control_plane(*comm);
    check_parts(*comm);
    REQUIRE(ranks_per_node(nodes_of(*comm)) == 1);
}

TEST_CASE("the number of processes is read from the launcher's environment variables", "[communicator]") {
    const char* const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",
                                     "PMIX_RANK"};
    for (const char* variable : variables) REQUIRE(std::getenv(variable) == nullptr);
    REQUIRE(launched_processes().processes == 1);
    for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
        setenv(variable, "3", 1);
        const Launch launch = launched_processes();
        unsetenv(variable);
        REQUIRE(launch.processes == 3);
        REQUIRE(launch.variable == variable);
    }
    setenv("SLURM_NTASKS", "4", 1);
    REQUIRE(launched_processes().processes == 1);  // a batch script, not a task of srun
    setenv("PMIX_RANK", "0", 1);
    REQUIRE(launched_processes().processes == 4);
    for (const char* variable : variables) unsetenv(variable);
    REQUIRE(open_communicator()->size() == 1);
}

TEST_CASE("intervals of a stream are added up, without the time between them", "[communicator]") {
    const device::Stream stream;
    StreamTimes times;
    const auto began = std::chrono::steady_clock::now();
    times.stop(stream);
    for (int i = 0; i < 3; ++i) {
        times.start(stream);
        stream.sync();  // a busy GPU reads its clock late
        std::this_thread::sleep_for(10ms);
        times.stop(stream);
        std::this_thread::sleep_for(20ms);
    }
    times.stop(stream);
    stream.sync();
    const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(),
                 seconds = times.seconds();
    CHECK(seconds >= 0.03 * 0.999);  // a GPU's clock has another resolution
    CHECK(seconds <= all - 0.06 * 0.999);
    CHECK(times.seconds() == seconds);
}

TEST_CASE("every element counts once for each rank that receives it", "[communicator][local]") {
    run_ranks(3, [](Communicator& comm) {
        constexpr std::int64_t kElements = 1920, kWhole = kElements * 2;  // bytes of bf16
        const ElementRange shard = shard_of(kElements, comm.rank(), 3);
        const auto array = on_device(std::vector<kernels::bf16>(kElements)), other = on_device(array.download(nullptr));
        const auto whole = array.span(), mine = whole.subspan(shard.first, shard.size);
        const auto check = [&](std::int64_t want, auto enqueue) {
            const std::int64_t before = comm.bytes_sent();
            comm.group_begin(nullptr);
            enqueue();
            expect(comm.bytes_sent() == before, "a group that was not ended has sent nothing");
            comm.sync(comm.group_end());
            expect(comm.bytes_sent() == before + want, "bytes that rank " + std::to_string(comm.rank()) + " sends");
        };
        const std::int64_t scattered = kWhole - 2 * shard.size, gathered = 2 * 2 * shard.size;
        check(scattered, [&] { comm.reduce_scatter(mine, whole); });
        check(gathered, [&] { comm.all_gather(whole, mine); });
        check(scattered + gathered, [&] { comm.all_reduce(whole); });
        check(comm.rank() == 1 ? 0 : kWhole, [&] { comm.reduce(whole, 1); });
        check(comm.rank() == 1 ? 2 * kWhole : 0, [&] { comm.broadcast(whole, 1); });
        check(2 * kWhole / 3 + gathered, [&] { comm.all_to_all(other.span(), whole), comm.all_gather(whole, mine); });
    });
}

TEST_CASE("ranks as threads: every collective, in every order", "[communicator][local]") {
    const int ranks = GENERATE(1, 2, 3, 4, 8);
    using enum LocalOrder;
    for (const LocalSettings& settings : std::vector<LocalSettings>{{prompt}, {prompt, 300us}, {late}, {early}}) {
        CAPTURE(ranks, int(settings.order), settings.delay.count());
        REQUIRE_NOTHROW(run_ranks(ranks, [](Communicator& comm) {
            check_device_collectives(comm, 20'011);
            check_groups(comm);
            check_control_plane(comm);
            check_parts(comm);
        }, settings));
    }
}

TEST_CASE("different numbers of ranks per machine are refused on all ranks", "[communicator][local]") {
    for (const int ranks : {4, 5}) {
        std::vector<std::string> errors(ranks);
        run_ranks(ranks, [&](Communicator& comm) {
            errors[comm.rank()] = error_of([&] { expect(ranks_per_node(nodes_of(comm)) == 2, "two ranks on each"); });
        }, {.ranks_per_node = 2});
        for (const std::string& error : errors)
            CHECK(error == (ranks == 4 ? "accepted"
                                       : "the number of ranks of a machine is 1 on one and 2 on another; expected the "
                                         "same on all; start equally many ranks on each, such as with mpirun --map-by "
                                         "ppr:1:node"));
    }
}

namespace {

// The data before and after rank 0 waits for an all_reduce of 1000 ones, optionally overwritten in between.
struct Seen {
    float before, after;
};
Seen all_reduce_ones(LocalOrder order, bool overwrite) {
    std::atomic<float> before{}, after{};
    run_ranks(2, [&](Communicator& comm) {
        const auto data = on_device(std::vector<float>(1000, 1));
        comm.group_begin(nullptr);
        comm.all_reduce(data.span());
        const CommEvent reduced = comm.group_end();
        if (comm.rank() == 0) before = data.download(nullptr)[0];
        if (overwrite) device::copy_to_device(data.span().data(), std::vector<float>(1000, 5).data(), 4000, nullptr);
        comm.barrier();  // a barrier of the hosts does not hide the error
        comm.wait(nullptr, reduced);
        if (comm.rank() == 0) after = data.download(nullptr)[0];
    }, {order});
    return {before, after};
}

}  // namespace

TEST_CASE("a missing wait changes the result every time", "[communicator][local]") {
    for (int again = 0; again < 20; ++again) {
        const Seen late = all_reduce_ones(LocalOrder::late, false), early = all_reduce_ones(LocalOrder::early, false);
        REQUIRE(late.before == 1);
        REQUIRE(std::isnan(early.before));
        REQUIRE(late.after == 2);
        REQUIRE(early.after == 2);
        // Data that is overwritten while it belongs to the communicator is summed or lost.
        REQUIRE(all_reduce_ones(LocalOrder::late, true).after == 10);
        REQUIRE(all_reduce_ones(LocalOrder::early, true).after == 2);
    }
}
