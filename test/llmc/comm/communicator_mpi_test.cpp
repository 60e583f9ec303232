// communicator_mpi_test.cpp - ranks as processes: collectives, and how a job ends when a rank fails
#include <iostream>
#include <thread>

#include "test/support/communicator_suite.h"
#include "test/support/run_support.h"
#include "test/support/support.h"

using namespace llmc;
using namespace test;

namespace {

// Runs a hidden case on `ranks` processes, skipped without MPI, or on a single one without mpirun; kills it after
// `at_most`.
Result run_case(const std::string& name, int ranks, std::chrono::seconds at_most) {
    const ScratchFolder folder;
    const Texts self{fs::read_symlink("/proc/self/exe").string(), name};
    return Process((ranks > 0 ? launcher(ranks) : Texts()) + self, folder / "output").result(at_most);
}

// A job that fails must end in time, with no rank at its end.
Result end_of(const std::string& name, int ranks) {
    const Result ended = run_case(name, ranks, std::chrono::seconds(60));
    CAPTURE(name, ended.output);
    REQUIRE(ended.exit_code > 0);  // it was not killed
    REQUIRE(ended.count("reached the end") == 0);
    return ended;
}

}  // namespace

TEST_CASE("ranks as processes: every collective, several machines, and chunks of 512 bytes", "[communicator][mpi]") {
    const auto [name, ranks] = GENERATE(table<const char*, int>(
        {{"mpi rank: every collective", 1}, {"mpi rank: every collective", 2}, {"mpi rank: every collective", 3},
         {"mpi rank: every collective", 4}, {"mpi rank: neighbours as machines", 4}, {"mpi rank: small chunks", 3}}));
    const Result ended = run_case(name, ranks, std::chrono::seconds(120));
    CAPTURE(name, ranks, ended.exits(0));
    REQUIRE(ended.count("All tests passed") == ranks);
}

TEST_CASE("an error of one or of all processes ends the job, and is printed once", "[communicator][mpi]") {
    const auto [name, ranks, exit_code, says] = GENERATE(table<const char*, int, int, const char*>(
        {{"mpi rank: one throws", 3, 3, "error: rank 1 on "}, {"mpi rank: all throw", 4, 2, "error: rank 0 on "}}));
    const Result ended = end_of(name, ranks);
    CHECK_THAT(ended.exits(exit_code), Contains(says));
    CHECK(ended.count("error: ") == 1);
    CHECK(ended.count(": no memory is left\n") == (exit_code == 3 ? 1 : 0));
}

TEST_CASE("a process that leaves by an unreported exception ends the job", "[communicator][mpi]") {
    // Catch2 prints the exception.
    const std::string when = GENERATE("during a collective", "between collectives");
    const std::string name = "mpi rank: one leaves " + when, says = "rank 2 leaves " + when;
    const Result ended = end_of(name, 3);
    CHECK_THAT(ended.output, Contains(says));
    CHECK(ended.exit_code != 0);
}

TEST_CASE("messages of different sizes cause an Error that names call, rank and line", "[communicator][mpi]") {
    skip_without_mpi();
    CHECK_THAT(end_of("mpi rank: sizes differ", 2).exits(4),
               Contains("communicator_mpi.cpp:") && Contains("on rank 0: MPI_ERR_TRUNCATE"));
}

TEST_CASE("a launcher of another MPI is detected", "[communicator][mpi]") {
    skip_without_mpi();
    setenv("PMI_SIZE", "4", 1);
    const Result ended = run_case("mpi rank: every collective", 0, std::chrono::seconds(60));
    unsetenv("PMI_SIZE");
    CAPTURE(ended.output);
    REQUIRE(ended.exit_code != 0);
    REQUIRE_THAT(ended.output, Contains("the number of ranks that MPI sees is 1; expected 4, as PMI_SIZE says"));
}

// ---- hidden: the cases that those above start

namespace {

using Array = device::Array<float>;

CommEvent all_reduce(Communicator& comm, const Array& data) {
    comm.group_begin(nullptr);
    comm.all_reduce(data.span());
    return comm.group_end();
}

// Handles errors like main().
template <class Run> void run_or_abort(int exit_code, Run&& run) {
    const auto comm = open_communicator();
    try {
        run(*comm);
    } catch (const Error& error) {
        comm->abort(error.what(), exit_code);
    }
    std::cout << "reached the end" << std::endl;
}

void one_leaves(bool during_collective) {
    const auto comm = open_communicator();
    const Array data = on_device(std::vector<float>(100'000, 1));
    const CommScope scope(*comm);
    const CommEvent reduced = all_reduce(*comm, data);
    if (comm->rank() == 2 && during_collective) throw Error("rank 2 leaves during a collective");
    comm->sync(reduced);
    if (comm->rank() == 2) throw Error("rank 2 leaves between collectives");
    comm->barrier();
    std::cout << "reached the end" << std::endl;
}

}  // namespace

TEST_CASE("mpi rank: every collective", "[.]") {
    const auto comm = open_communicator();
    REQUIRE_NOTHROW(check_control_plane(*comm));
    REQUIRE_NOTHROW(check_device_collectives(*comm, 1'000'003));
    REQUIRE_NOTHROW(check_groups(*comm));
    REQUIRE_NOTHROW(check_parts(*comm));
}

TEST_CASE("mpi rank: neighbours as machines", "[.]") {
    const auto comm = open_communicator(0, 2);
    REQUIRE(comm->local_rank() == comm->rank() % 2);
    REQUIRE(ranks_per_node(nodes_of(*comm)) == 2);
    REQUIRE(comm->split(comm->node())->size() == 2);
    REQUIRE(comm->split(comm->local_rank())->rank() == comm->rank() / 2);
    const auto part = comm->split(comm->rank() == 3);  // two ranks of one machine, and one of the other
    if (comm->rank() == 3) REQUIRE(ranks_per_node(nodes_of(*part)) == 1);
    else REQUIRE_THROWS_WITH(ranks_per_node(nodes_of(*part)), Contains("is 1 on one and 2 on another"));
}

TEST_CASE("mpi rank: small chunks", "[.]") {
    const auto comm = open_communicator(512);
    REQUIRE_NOTHROW(check_device_collectives(*comm, 50'003));
    REQUIRE_NOTHROW(check_groups(*comm));
}

TEST_CASE("mpi rank: one throws", "[.]") {
    run_or_abort(3, [](Communicator& comm) {
        const Array data = on_device(std::vector<float>(1'000'000, 1));
        const CommScope scope(comm);
        comm.wait(nullptr, all_reduce(comm, data));
        if (comm.rank() == 1) {
            all_reduce(comm, data);  // the others never call this: it must not keep rank 1 from leaving
            throw Error("no memory is left");
        }
        comm.barrier();
    });
}

TEST_CASE("mpi rank: all throw", "[.]") {
    run_or_abort(2, [](Communicator& comm) {
        comm.barrier();
        if (comm.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));  // as on a busy machine
        throw Error("--seq-len is 0");
    });
}
TEST_CASE("mpi rank: one leaves during a collective", "[.]") { one_leaves(true); }
TEST_CASE("mpi rank: one leaves between collectives", "[.]") { one_leaves(false); }

TEST_CASE("mpi rank: sizes differ", "[.]") {
    run_or_abort(4, [](Communicator& comm) {
        const Array data = on_device(std::vector<float>(1000, 1));
        comm.group_begin(nullptr);
        comm.broadcast(data.span().first(comm.rank() == 0 ? 10 : 1000), 1);
        comm.sync(comm.group_end());
        // ends rank 1, which has seen no error: Open MPI 4's mpirun may hang if one rank aborts while another one
        // finalizes
        comm.barrier();
    });
}
