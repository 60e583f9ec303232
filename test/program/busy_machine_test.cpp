// busy_machine_test.cpp - how the threads of a run wait, beside other programs or not
#include <catch2/catch.hpp>
#include <thread>

#include "kernels/device/memory.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

// What a run has of these settings in its environment once it trains: the program's own, or as `env` was asked to.
std::string settings_of(const std::vector<std::string>& env) {
    const TrainingFolder folder;
    auto command = env;
    command.insert(command.begin(), {"env", "-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT"});
    command.push_back(program("train_gpt2"));
    for (const std::string& flag : folder.flags({"-x", "100000000", "-v", "0", "-o", folder.path("out")}))
        command.push_back(flag);
    Process run(command, folder.path("output.txt"));
    while (!run.ended() && !(fs::exists(folder.path("out/log.jsonl")) && !folder.log("out", "step").empty()))
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    REQUIRE_FALSE(run.ended());
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

TEST_CASE("threads of a run that wait for each other sleep soon, unless the user has said how they wait", "[run]") {
    CHECK(settings_of({}) == (device::memory_is_host_memory() ? "GOMP_SPINCOUNT=6000 " : ""));
    CHECK(settings_of({"OMP_WAIT_POLICY=passive"}) == "OMP_WAIT_POLICY=passive ");
    CHECK(settings_of({"GOMP_SPINCOUNT=7"}) == "GOMP_SPINCOUNT=7 ");
}
