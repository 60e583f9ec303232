// busy_machine_test.cpp - OpenMP wait policy and number of threads of a run
#include "kernels/device/memory.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

// The wait settings in the environment of a training run: the program's, or those of `env`.
std::string settings_of(const Texts& env) {
    const TrainingFolder folder;
    const Texts command = Texts{"env", "-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT"} + env +
                          Texts{program("train_gpt2")} +
                          folder.flags({"-x", "100000000", "-v", "0", "-o", folder.path("out")});
    Process run(command, folder.path("output.txt"));
    REQUIRE(folder.logs("step"));
    const fs::path process = "/proc/" + std::to_string(run.id());
    CHECK(read_bytes(process / "comm") == "train_gpt2\n");
    std::istringstream variables(read_bytes(process / "environ"));
    std::string settings;
    for (std::string variable; std::getline(variables, variable, '\0');)
        if (variable.starts_with("GOMP_SPINCOUNT=") || variable.starts_with("OMP_WAIT_POLICY="))
            settings += variable + ' ';
    return settings;
}

}  // namespace

TEST_CASE("waiting threads of a run soon sleep, unless the user sets the wait policy", "[run]") {
    CHECK(settings_of({}) == (device::memory_is_host_memory() ? "GOMP_SPINCOUNT=6000 " : ""));
    CHECK(settings_of({"OMP_WAIT_POLICY=passive"}) == "OMP_WAIT_POLICY=passive ");
    CHECK(settings_of({"GOMP_SPINCOUNT=7"}) == "GOMP_SPINCOUNT=7 ");
}

// oneDNN skips the work of threads that OpenMP does not provide, so a run must know their number.
TEST_CASE("a run is correct with any number of threads that OpenMP provides", "[run]") {
    if (!device::memory_is_host_memory()) skip("a build for GPUs");
    const TrainingFolder folder;
    const auto train = [&](const std::string& variable, const std::string& out, const std::string& threads) {
        return folder.command(Texts{"env", variable, program("train_gpt2")} +
                              folder.flags({"-x", "5", "-v", "0", "-o", folder.path(out), "--threads", threads}));
    };
    train("NONE=1", "one", "1").exits(0);
    train("NONE=1", "two", "2").exits(0);
    REQUIRE(folder.losses("one").size() == 5);
    train("OMP_DYNAMIC=true", "dynamic", "2").exits(0);
    CHECK(folder.losses("dynamic") == folder.losses("two"));
    for (const std::string limit : {"OMP_THREAD_LIMIT=1", "OMP_MAX_ACTIVE_LEVELS=0"}) {
        CAPTURE(limit);
        train(limit, limit, "0").exits(0);
        CHECK(folder.losses(limit) == folder.losses("one"));
        const std::string asked = train(limit, "asked", "2").exits(2);
        CHECK_THAT(asked, Contains("--threads is 2; expected at most the 1 that OpenMP allows"));
    }
}
