// cuda_build_stand_in_test.cpp - the whole CUDA build with stand-ins for NVIDIA's libraries (test/stand_in): whole runs
// on every schedule, errors that the stand-ins find, and error lines when a call fails
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>

#include "kernels/device/memory.h"
#include "kernels/gelu.h"
#include "llmc/comm/communicator.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

// Eight times the measured difference of losses: other libraries round differently.
constexpr double kFp32 = 8 * 2.3e-8, kBf16 = 8 * 3.9e-4;

const char* const kSchedules[] = {"eager", "late"};

// A run of `ranks` with additional environment variables.
Result run_with(const TrainingFolder& folder, const Texts& environment, int ranks, const Texts& arguments,
                const std::string& binary = program("train_gpt2")) {
    return folder.command(Texts{"env", "STAND_IN_GPUS=4", "XDG_CACHE_HOME=" + folder.path("cache")} + environment +
                          (ranks > 1 ? launcher(ranks) : Texts()) + Texts{binary} + arguments);
}

// 192 positions a step: 12 sequences for 1, 2, 3 or 4 ranks.
Texts flags_of(const TrainingFolder& folder, const std::string& out, const Texts& more) {
    Texts all = kFixed + Texts{"-i", folder.path("train_*.bin"), "-j", folder.path("val_*.bin"), "-b", "1", "-t", "16",
                               "-d", "192", "-x", "2", "-v", "2", "--val-tokens", "64", "--lr", "1e-2", "--eps",
                               "1e-3", "--threads", "1", "-o", folder.path(out)};
    if (std::ranges::find(more, "-e") == more.end()) all = all + Texts{"-e", "custom:l=1,h=2,c=32,t=16"};
    return last_of_each(all + more);
}

// How often a run without errors calls the functions of a library, on one of its ranks.
std::map<std::string, std::int64_t> calls_of(const TrainingFolder& folder, int ranks, const Texts& flags,
                                             const std::string& prefix) {
    const auto calls = folder.path("calls");
    run_with(folder, {"STAND_IN_CALLS=" + calls}, ranks, flags).exits(0);
    std::map<std::string, std::int64_t> counts;
    for (const auto& entry : fs::directory_iterator(fs::path(calls).parent_path())) {
        if (!entry.path().filename().string().starts_with("calls.")) continue;
        std::ifstream lines(entry.path());
        std::string function;
        for (std::int64_t count; lines >> function >> count;)
            if (function.starts_with(prefix)) counts[function] = count;
    }
    return counts;
}

// All numbers of the log except times.
Texts numbers_of(const TrainingFolder& folder, const std::string& out) {
    Texts all;
    for (const char* const event : {"step", "val"})
        for (const auto& entry : folder.log(out, event)) all.push_back(llmc::text_of(without_times(entry)));
    return all;
}

}  // namespace

TEST_CASE("the CUDA build trains the same on every schedule, and like the build without its libraries", "[stand_in]") {
    struct Run {
        const char* name;
        int ranks;
        Texts flags;
        const char* attention = nullptr;
        // Only losses with other ranks: the sign of a sum that cancels depends on rounding.
        double tolerance_of_signs = 0;
        int last = 2;  // step
    };
    const Run run = GENERATE(values<Run>({
        {"one rank", 1, {}},
        {"bf16, flash attention, recomputed, with samples", 1,
         {"--dtype", "bf16", "--recompute", "block", "-e", "custom:l=2,h=1,c=64,t=16", "-s", "2", "--sample-tokens",
          "3"}, "attention: flash (mma.sync), selected by auto"},
        {"2 ranks over NCCL, ZeRO 2, bf16 on the way", 2,
         {"--comm", "nccl", "-z", "2", "--dtype", "bf16", "--reduce-dtype", "bf16"}},
        {"3 ranks over NCCL, unequal shards", 3, {"--comm", "nccl", "-z", "1"}},
        {"4 ranks over NCCL", 4, {"--comm", "nccl", "-z", "0"}},
        {"2 ranks over NCCL, Muon, ZeRO 2, bf16", 2,
         {"--comm", "nccl", "-z", "2", "--optimizer", "muon", "--dtype", "bf16", "--reduce-dtype", "bf16"}, nullptr,
         kBf16},
        {"2 ranks over MPI, ZeRO 2", 2, {"--comm", "mpi", "-z", "2"}},
        {"2 ranks over NCCL, 1-bit Adam", 2,
         {"--comm", "nccl", "--optimizer", "onebit-adam", "--onebit-freeze-step", "1", "--onebit-exclude", "ln_",
          "-x", "4"}, nullptr, 5e-3, 4},
    }));
    const TrainingFolder folder;
    const auto kept = folder.path("choices.json");
    // Freed host memory is overwritten, so that copies still in flight show.
    const Texts overwrite{"MALLOC_PERTURB_=85", "GLIBC_TUNABLES=glibc.malloc.tcache_count=0"};
    for (const std::string schedule : kSchedules) {
        CAPTURE(run.name, schedule);
        const std::string output =
            run_with(folder, overwrite + Texts{"STAND_IN_SCHEDULE=" + schedule}, run.ranks,
                     flags_of(folder, schedule, run.flags + Texts{"--tune-file", kept})).exits(0);
        // cuDNN's stand-in, if this build has cuDNN, supports nothing.
        if (run.attention) CHECK_THAT(output, Contains(run.attention));
        if (run.attention && run_with(folder, {}, 1, {"--version"}).exits(0).find(", cuDNN no,") == std::string::npos)
            CHECK_THAT(output, Contains("; not cudnn: "));
        CHECK(numbers_of(folder, schedule) == numbers_of(folder, "eager"));
        CHECK(folder.model(schedule, run.last) == folder.model("eager", run.last));
    }
    const bool bf16 = std::ranges::find(run.flags, "bf16") != run.flags.end();
    Texts alone = run.flags;
    const bool of_ranks = run.tolerance_of_signs > 0;
    if (of_ranks) alone = alone + Texts{"--comm", "mpi"};
    else if (run.ranks > 1) alone = bf16 ? Texts{"--dtype", "bf16"} : Texts{};
    const fs::path builds = fs::path(program("train_gpt2")).parent_path().parent_path();
    run_with(folder, {}, of_ranks ? run.ranks : 1, flags_of(folder, "fibers", alone),
             builds / "fibers" / "train_gpt2").exits(0);
    for (const char* const event : {"step", "val"}) {
        const auto got = numbers(folder.log("eager", event), "loss");
        const auto want = numbers(folder.log("fibers", event), "loss");
        REQUIRE(got.size() == want.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
            CAPTURE(event, i, got[i] - want[i]);
            CHECK(std::fabs(got[i] - want[i]) <= (of_ranks ? run.tolerance_of_signs : bf16 ? kBf16 : kFp32));
        }
    }
}

TEST_CASE("buckets are reduced and gathered by one operation each, in registered memory", "[stand_in]") {
    const TrainingFolder folder;
    const auto counts = calls_of(folder, 3, flags_of(folder, "out", {"--comm", "nccl", "-z", "1", "--tune=off", "-e",
                                                                     "custom:l=2,h=2,c=32,t=16"}), "nccl");
    // 2 steps with 3 buckets, and the gather of their sums; with 3 ranks the last shard is longer, in the same launch.
    CHECK(counts.at("ncclReduceScatter") == 6);
    CHECK(counts.at("ncclAllGather") == 6 + 2);
    CHECK((counts.at("ncclReduce") == 6 && counts.at("ncclBroadcast") == 6));
    CHECK(counts.at("ncclGroupEnd") == 6 + 6 + 2);
    // Gradients and parameters, and a byte of which the size is measured.
    CHECK((counts.at("ncclCommWindowRegister") == 2 && counts.at("ncclCommWindowDeregister") == 2));
    CHECK((counts.at("ncclMemAlloc") == 3 && counts.at("ncclMemFree") == 3));
}

TEST_CASE("the fastest algorithm is selected by the device's clock, and timed again if its order is undocumented",
          "[stand_in]") {
    const TrainingFolder folder;
    const auto file = folder.path("choices.json");
    const auto trained = [&](const std::string& out) {
        run_with(folder, {}, 1, flags_of(folder, out, {"--tune-file", file})).exits(0);
        return folder.model(out, 2);
    };
    const std::string model = trained("first");
    const auto timed = nlohmann::json::parse(read_bytes(file));
    auto in_place = timed;
    int changed = 0;
    for (auto& [device, libraries] : in_place["devices"].items())
        for (auto& [library, tuned] : libraries.items())
            for (auto& [problem, choice] : tuned.items()) {
                // Bytes of stand_in::cublaslt::Algorithm: three numbers, then CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE.
                auto taken = choice["taken"].get<std::string>();
                const auto reduction = taken.find(' ') + 1 + 2 * 12;
                if (taken.size() < reduction || taken.substr(reduction, 8) != "02000000") continue;
                choice["taken"] = taken.replace(reduction, 8, "01000000");  // _INPLACE
                ++changed;
            }
    REQUIRE(changed >= 4);
    write_bytes(file, in_place.dump());
    CHECK(trained("again") == model);
    CHECK(nlohmann::json::parse(read_bytes(file)) == timed);
}

TEST_CASE("an algorithm with which the GPU fails when it is timed is named", "[stand_in]") {
    const TrainingFolder folder;
    const auto run = [&](const std::string& fault, const Texts& flags) {
        return run_with(folder, {"STAND_IN_FAIL=" + fault}, 1, flags_of(folder, fault, flags)).exits(1);
    };
    CHECK_THAT(run("cublasLtMatmul:2+", {}),
               Contains("error: the GPU failed when matmul forward fp32, rows 16, in_channels 32, out_channels 96, "
                        "bias, bare, algorithm 2 of 9, was timed: cublasLtMatmul failed for ") &&
                   Contains("; --tune=off uses the library's first"));
    CHECK_THAT(run("cudaLaunchKernelExC:1+", {"--dtype", "bf16", "-e", "custom:l=1,h=1,c=64,t=16"}),
               Contains("error: the GPU failed when attention auto bf16, ") && Contains(": flash, was timed: "));
}

// A program with one deliberate error, for the cases below: MISUSE names it.
TEST_CASE("a misuse of the device", "[.]") {
    const char* const told = std::getenv("MISUSE");
    const std::string error = told ? told : "nothing";
    constexpr std::size_t kElements = 1024;
    const device::Stream one, two;
    device::Array<float> a(kElements), b(kElements);
    device::PinnedMemory pinned(kElements * sizeof(float));
    const auto memory = std::span(reinterpret_cast<float*>(pinned.data()), kElements);
    const auto gelu = [&](std::span<const float> from, const device::Stream& stream) {
        kernels::gelu_forward<float>({{b.span().data(), from.size()}, from}, stream);
    };
    a.zero(one);
    if (error == "race") gelu(a.span(), two);
    if (error == "past the end") gelu({a.span().data(), kElements + 64}, one);
    if (error == "leak") new device::Array<float>(100);
    if (error == "pinned memory reused") {
        std::ranges::fill(memory, 1.0f);
        device::copy_to_device(a.span().data(), memory.data(), memory.size_bytes(), one);
        std::ranges::fill(memory, 2.0f);
        CHECK(a.download(one)[5] == 1);
    }
    if (error == "ranks differ") {
        const auto ranks = llmc::over_nccl(llmc::open_communicator());
        ranks->group_begin(one);
        ranks->broadcast(a.span().first(ranks->rank() == 0 ? 100 : 200), 0);
        ranks->sync(ranks->group_end());
    }
    one.sync();
    two.sync();
}

TEST_CASE("the stand-ins report errors of a program on the device, and report nothing without an error", "[stand_in]") {
    const auto [error, ranks, code, says] = GENERATE(table<const char*, int, int, const char*>({
        {"nothing", 1, 0, "1 passed"},
        {"race", 1, 96, "stand-in: race: \""},
        {"past the end", 1, 96, " at byte 4096 of an allocation of 4096"},
        {"pinned memory reused", 1, 1, "2.0f == 1"},
        {"leak", 1, 97, "stand-in: not freed at exit: 1 x allocation of device memory"},
        {"ranks differ", 2, 96, "rank 0 is in broadcast of 100 float32 from rank 0, rank 1 in broadcast of 200 "},
    }));
    const TrainingFolder folder;
    for (const std::string schedule : kSchedules) {
        if (code == 1 && schedule == "eager") continue;  // which may copy the memory in time
        CAPTURE(error, schedule);
        CHECK_THAT(run_with(folder, {"STAND_IN_SCHEDULE=" + schedule, std::string("MISUSE=") + error}, ranks,
                            {"a misuse of the device"}, program("tests")).exits(code), Contains(says));
    }
}

// Every function of CUDA and its libraries fails, at its first call and at its last.
TEST_CASE("a failed call ends the CUDA build with one line that names it", "[stand_in]") {
    const auto [ranks, more, prefix] = GENERATE(table<int, Texts, std::string>(
        {{1, {"--tune=off", "--dtype", "bf16"}, "cu"},
         {2, {"--tune=off", "--comm", "nccl", "-z", "2"}, "nccl"},
         {2, {"--tune=off", "--comm", "mpi", "-z", "2"}, "cudaEventRecord"}}));
    const TrainingFolder folder;
    Texts flags = flags_of(folder, "out", more);
    flags.erase(std::ranges::find(flags, "-o"), std::ranges::find(flags, "-o") + 2);
    *(std::ranges::find(flags, "-d") + 1) = "32";
    auto counts = calls_of(folder, ranks, flags, prefix);
    if (prefix == "nccl") counts.emplace("ncclCommGetAsyncError", 1);  // called every 200 ms only
    REQUIRE(counts.size() >= (prefix == "cudaEventRecord" ? 1 : 8));
    for (const auto& [function, count] : counts)
        for (const std::int64_t number : std::set<std::int64_t>{1, function == "cudaMemcpyAsync" ? 2 : 1, count}) {
            const std::string told = function + ":" + std::to_string(number) +
                                     (ranks > 1 && function != "ncclGetUniqueId" ? "@1" : "");  // rank 0's alone
            const Result result =
                run_with(folder, {"STAND_IN_FAIL=" + told, "STAND_IN_SCHEDULE=late", "MALLOC_MMAP_THRESHOLD_=2048"},
                         ranks, flags);  // freed host memory is then inaccessible
            CAPTURE(function, number, count, result.exit_code, result.output);
            CHECK_THAT(result.output, !Contains("stand-in:"));
            // Destructors do not throw; repeated queries succeed.
            const bool may_pass = function.find("Destroy") != function.npos || function.find("Free") != function.npos ||
                                  function == "cudaGetDeviceCount" || function == "ncclCommGetAsyncError" ||
                                  function == "ncclCommAbort" || function == "cudaDeviceSynchronize" ||
                                  function == "ncclCommWindowDeregister" ||
                                  (function == "cudaStreamSynchronize" && number == count);
            if (may_pass && result.exit_code == 0) continue;
            CHECK(result.exit_code > 0);
            CHECK(result.exit_code <= 2);
            Texts errors;
            for (const std::string& line : lines_of(result.output))
                if (line.starts_with("error: ")) errors.push_back(line);
            // The others wait for a rank that does not call NCCL, and report that it is gone.
            CHECK(errors.size() >= 1);
            CHECK(errors.size() <= (function == "ncclCommInitRank" ? 2 : 1));
            const std::string expected = function == "cudaMalloc"              ? "an allocation of device memory"
                                         : function == "cudaGetDeviceCount"    ? "no GPU can be used"
                                         : function == "ncclCommGetAsyncError" ? "NCCL: "
                                                                               : function;
            CHECK_THAT(errors.empty() ? "" : errors[0], Contains(expected));
        }
}
