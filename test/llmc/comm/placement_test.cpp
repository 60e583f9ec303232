// placement_test.cpp - the cores and the GPU of a rank, and the transport of its tensors
#include "llmc/comm/placement.h"

#include "kernels/device/device.h"
#include "test/support/scratch_folder.h"

using namespace llmc;
using test::error_of;
using Threads = std::vector<int>;

namespace {

// Cores of two hardware threads, numbered as Linux does: 0 and `cores`, 1 and `cores` + 1, ...
std::vector<Core> machine_of(int cores) {
    std::vector<Core> all;
    for (int core = 0; core < cores; ++core) all.push_back({core, core + cores});
    return all;
}

}  // namespace

TEST_CASE("the cores of a machine are divided among its ranks", "[placement]") {
    CHECK(share_of_cores(machine_of(4), 0, 2) == Threads{0, 4, 1, 5});  // both threads of neighbouring cores
    CHECK(share_of_cores(machine_of(4), 1, 2) == Threads{2, 6, 3, 7});
    CHECK(share_of_cores(machine_of(4), 0, 1) == Threads{0, 4, 1, 5, 2, 6, 3, 7});
    CHECK(share_of_cores({{0}, {1}}, 0, 4) == Threads{0});  // more ranks than cores
    CHECK(share_of_cores({{0}, {1}}, 1, 4) == Threads{0});
    CHECK(share_of_cores({{0}, {1}}, 3, 4) == Threads{1});
    CHECK(share_of_cores({}, 0, 1).empty());
    CHECK(error_of([] { share_of_cores(machine_of(4), 2, 2); }) != "accepted");
    for (int cores = 1; cores <= 20; ++cores)
        for (int ranks = 1; ranks <= cores; ++ranks) {
            std::vector<int> owners(std::size_t(2 * cores));
            for (int rank = 0; rank < ranks; ++rank) {
                const Threads mine = share_of_cores(machine_of(cores), rank, ranks);
                CHECK((int(mine.size()) / 2 == cores / ranks || int(mine.size()) / 2 == cores / ranks + 1));
                for (const int thread : mine) ++owners[std::size_t(thread)];
            }
            CAPTURE(cores, ranks);
            CHECK(owners == std::vector<int>(std::size_t(2 * cores), 1));
        }
}

// Hardware threads that no machine has: each is a core of one thread.
TEST_CASE("ranks keep the cores that a launcher gave to them alone; common cores are divided", "[placement]") {
    CHECK(share_of_threads({{9000, 9001}, {9002}}, 0) == Threads{9000, 9001});
    CHECK(share_of_threads({{9000, 9001}, {9002}}, 1) == Threads{9002});
    CHECK(share_of_threads({{9000, 9001}, {9000, 9001}}, 0) == Threads{9000});
    CHECK(share_of_threads({{9000, 9001}, {9000, 9001}}, 1) == Threads{9001});
    CHECK(share_of_threads({{9000, 9001}, {9001, 9002, 9003}}, 1) == Threads{9002, 9003});
    CHECK(share_of_threads({{9000, 9001}}, 0) == Threads{9000, 9001});
    CHECK(cores_of({9000, 9001}) == std::vector<Core>{{9000}, {9001}});
}

TEST_CASE("the local rank selects the GPU", "[placement]") {
    CHECK(gpu_of_rank(0, 3, 8) == 3);
    CHECK(gpu_of_rank(4, 3, 8) == 7);
    CHECK(gpu_of_rank(0, 3, 1) == 0);  // the only visible one
    CHECK(gpu_of_rank(6, 3, 8) == 1);
    CHECK(gpu_of_rank(9, 3, 8) == 9);  // device::open() refuses a missing GPU
    CHECK(gpu_of_rank(0, 3, 0) == 0);
}

TEST_CASE("NCCL is used if every rank has a GPU and the build has NCCL", "[placement]") {
    const std::vector<std::string> own{"A", "B"}, shared{"A", "B", "A"}, none{"", ""};
    CHECK(uses_nccl(Transport::automatic, own, ""));
    CHECK(uses_nccl(Transport::nccl, own, ""));
    CHECK_FALSE(uses_nccl(Transport::mpi, own, ""));
    CHECK_FALSE(uses_nccl(Transport::automatic, own, "NCCL"));
    CHECK_FALSE(uses_nccl(Transport::automatic, none, ""));
    CHECK_FALSE(uses_nccl(Transport::automatic, {"A"}, ""));
    CHECK(uses_nccl(Transport::nccl, {"A"}, ""));  // one rank, on request
    CHECK_FALSE(uses_nccl(Transport::mpi, shared, ""));
    for (const Transport requested : {Transport::automatic, Transport::nccl})
        CHECK(error_of([&] { uses_nccl(requested, shared, ""); }) ==
              "a GPU is shared by ranks: A; expected one GPU per rank, starting with --device; "
              "start fewer ranks on that host, or add --comm mpi, which lets them share it");
    CHECK_THAT(error_of([&] { uses_nccl(Transport::automatic, shared, "NCCL"); }),
               test::Contains("shared by ranks"));
    CHECK_THAT(error_of([&] { uses_nccl(Transport::nccl, own, "NCCL: none"); }),
               test::Contains("this build lacks NCCL: none"));
}

TEST_CASE("if NCCL cannot be opened, the control plane stays usable", "[placement]") {
    if (why_no_nccl().empty() && device::count() > 0) test::skip("NCCL can be opened here");
    const std::shared_ptr<Communicator> control = alone();
    CHECK_THROWS_AS(over_nccl(control), Error);
    CHECK(control.use_count() == 1);
    CHECK_NOTHROW(control->barrier());
}
