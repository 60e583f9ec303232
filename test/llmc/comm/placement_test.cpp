// placement_test.cpp - who gets which cores, which GPU, and what tensors travel over
#include "llmc/comm/placement.h"

#include <catch2/catch.hpp>

#include "kernels/device/device.h"
#include "test/support/scratch_folder.h"

using namespace llmc;
using test::complaint;
using Threads = std::vector<int>;

namespace {

// Cores of two hardware threads, numbered as Linux does: 0 and `cores`, 1 and `cores` + 1, ...
std::vector<Core> machine_of(int cores) {
    std::vector<Core> all;
    for (int core = 0; core < cores; ++core) all.push_back({core, core + cores});
    return all;
}

}  // namespace

TEST_CASE("the ranks of a machine share out its cores", "[placement]") {
    CHECK(share_of_cores(machine_of(4), 0, 2) == Threads{0, 4, 1, 5});  // both threads of a core, cores side by side
    CHECK(share_of_cores(machine_of(4), 1, 2) == Threads{2, 6, 3, 7});
    CHECK(share_of_cores(machine_of(4), 0, 1) == Threads{0, 4, 1, 5, 2, 6, 3, 7});
    CHECK(share_of_cores({{0}, {1}}, 0, 4) == Threads{0});  // more ranks than cores
    CHECK(share_of_cores({{0}, {1}}, 1, 4) == Threads{0});
    CHECK(share_of_cores({{0}, {1}}, 3, 4) == Threads{1});
    CHECK(share_of_cores({}, 0, 1).empty());
    CHECK(complaint([] { share_of_cores(machine_of(4), 2, 2); }) != "accepted");
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

// Hardware threads that no machine has: cores of their own.
TEST_CASE("cores that a launcher gave to single ranks stay theirs, common ones are shared out", "[placement]") {
    CHECK(share_of_threads({{9000, 9001}, {9002}}, 0) == Threads{9000, 9001});
    CHECK(share_of_threads({{9000, 9001}, {9002}}, 1) == Threads{9002});
    CHECK(share_of_threads({{9000, 9001}, {9000, 9001}}, 0) == Threads{9000});
    CHECK(share_of_threads({{9000, 9001}, {9000, 9001}}, 1) == Threads{9001});
    CHECK(share_of_threads({{9000, 9001}, {9001, 9002, 9003}}, 1) == Threads{9002, 9003});
    CHECK(share_of_threads({{9000, 9001}}, 0) == Threads{9000, 9001});
    CHECK(cores_of({9000, 9001}) == std::vector<Core>{{9000}, {9001}});
}

TEST_CASE("a rank takes the GPU of its number on the machine", "[placement]") {
    CHECK(gpu_of_rank(0, 3, 8) == 3);
    CHECK(gpu_of_rank(4, 3, 8) == 7);
    CHECK(gpu_of_rank(0, 3, 1) == 0);  // the only one that it sees
    CHECK(gpu_of_rank(6, 3, 8) == 1);
    CHECK(gpu_of_rank(9, 3, 8) == 9);  // device::open() refuses what there is not
    CHECK(gpu_of_rank(0, 3, 0) == 0);
}

TEST_CASE("tensors travel over NCCL where every rank has a GPU and the build has NCCL", "[placement]") {
    const std::vector<std::string> own{"A", "B"}, shared{"A", "B", "A"}, none{"", ""};
    CHECK(over_nccl_by(Transport::automatic, own, ""));
    CHECK(over_nccl_by(Transport::nccl, own, ""));
    CHECK_FALSE(over_nccl_by(Transport::mpi, own, ""));
    CHECK_FALSE(over_nccl_by(Transport::automatic, own, "NCCL"));
    CHECK_FALSE(over_nccl_by(Transport::automatic, none, ""));
    CHECK_FALSE(over_nccl_by(Transport::automatic, {"A"}, ""));
    CHECK(over_nccl_by(Transport::nccl, {"A"}, ""));  // one rank, where it was asked for
    CHECK_FALSE(over_nccl_by(Transport::mpi, shared, ""));
    for (const Transport asked : {Transport::automatic, Transport::nccl})
        CHECK(complaint([&] { over_nccl_by(asked, shared, ""); }) ==
              "a GPU is shared by ranks: A; expected a GPU for each rank, --device and those behind it; "
              "start fewer ranks on that host, or add --comm mpi, which lets them share it");
    CHECK_THAT(complaint([&] { over_nccl_by(Transport::automatic, shared, "NCCL"); }),
               Catch::Contains("shared by ranks"));
    CHECK_THAT(complaint([&] { over_nccl_by(Transport::nccl, own, "NCCL: none"); }),
               Catch::Contains("this build lacks NCCL: none"));
}

TEST_CASE("who cannot open NCCL keeps the control plane", "[placement]") {
    if (nccl_lacks().empty() && device::count() > 0) {
        WARN("skipped: NCCL can be opened here");
        return;
    }
    const std::shared_ptr<Communicator> control = alone();
    CHECK_THROWS_AS(over_nccl(control), Error);
    CHECK(control.use_count() == 1);
    CHECK_NOTHROW(control->barrier());
}
