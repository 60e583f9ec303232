// cuda_build_stand_in_test.cpp - the whole CUDA build with stand-ins for NVIDIA's libraries (test/stand_in): whole runs
// on every schedule, errors that the stand-ins find, and error lines when a call fails
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>

#include "test/support/run_support.h"

using namespace test;

namespace {

// Eight times the measured difference of losses: other libraries round differently.
constexpr double kFp32 = 8 * 2.3e-8, kBf16 = 8 * 3.9e-4;

const char* const kSchedules[] = {"eager", "late", "random"};

// A run of `ranks` with additional environment variables.
Result run_with(const TrainingFolder& folder, const Texts& environment, int ranks, const Texts& arguments,
                const std::string& binary = program("train_gpt2")) {
    return folder.command(Texts{"env", "STAND_IN_GPUS=4", "XDG_CACHE_HOME=" + folder.path("cache")} + environment +
                          (ranks > 1 ? launcher(ranks) : Texts()) + Texts{binary} + arguments);
}

// misuse NAME with an environment variable.
Result run_misuse(const std::string& variable, const std::string& name) {
    const ScratchFolder folder;
    return Process({"env", variable, program("misuse"), name}, folder / "output.txt").result();
}

// 192 positions a step: 12 sequences for 1, 2, 3 or 4 ranks.
Texts flags_of(const TrainingFolder& folder, const std::string& out, const Texts& more) {
    Texts all{"-i", folder.path("train_*.bin"), "-j", folder.path("val_*.bin"), "-b", "1", "-t", "16", "-d", "192",
              "-x", "2", "-v", "2", "--val-tokens", "64", "--lr", "1e-2", "--eps", "1e-3", "--threads", "1", "-o",
              folder.path(out)};
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
        {"3 ranks over NCCL, Muon", 3, {"--comm", "nccl", "-z", "1", "--optimizer", "muon"}, nullptr, 1e-4},
        {"2 ranks over NCCL, Muon, ZeRO 2, bf16", 2,
         {"--comm", "nccl", "-z", "2", "--optimizer", "muon", "--dtype", "bf16", "--reduce-dtype", "bf16"}, nullptr,
         kBf16},
        {"2 ranks over MPI, ZeRO 2", 2, {"--comm", "mpi", "-z", "2"}},
        {"4 ranks over MPI, ZeRO 1", 4, {"--comm", "mpi", "-z", "1"}},
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
            run_with(folder, overwrite + Texts{"STAND_IN_SCHEDULE=" + schedule, "STAND_IN_SEED=7"}, run.ranks,
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

TEST_CASE("every product of the CUDA build is the same without the library's epilogues", "[stand_in]") {
    const TrainingFolder folder;
    for (const std::string dtype : {"fp32", "bf16"}) {
        std::vector<double> want;
        for (const std::string has : {"", "no-epilogues", "invalid-epilogues", "nothing"}) {
            CAPTURE(dtype, has);
            const std::string out = dtype + has;
            run_with(folder, {"STAND_IN_CUBLASLT=" + has}, 1,
                     flags_of(folder, out, {"--dtype", dtype, "--tune=off"})).exits(0);
            const auto losses = numbers(folder.log(out, "step"), "loss");
            if (has.empty()) want = losses;
            REQUIRE(losses.size() == want.size());
            for (std::size_t i = 0; i < want.size(); ++i)
                CHECK(std::fabs(losses[i] - want[i]) <= (dtype == "bf16" ? kBf16 : kFp32));
        }
    }
}

TEST_CASE("the CUDA build selects the fastest algorithm by the device's clock", "[stand_in]") {
    const TrainingFolder folder;
    const auto taken = [&](const std::string& out, const std::string& seconds) {
        const auto file = folder.path(out + ".json");
        run_with(folder, {"STAND_IN_CUBLASLT_SECONDS=" + seconds}, 1,
                 flags_of(folder, out, {"--tune=auto", "--tune-file", file})).exits(0);
        return read_bytes(file);
    };
    const std::string first = taken("first", "1e-4,2e-4,3e-4"), last = taken("last", "3e-4,2e-4,1e-4");
    CHECK(first != last);
    CHECK(first == taken("again", "1e-4,2e-4,3e-4"));
}

TEST_CASE("a stored algorithm that adds in place, in an undocumented order, is timed again", "[stand_in]") {
    const TrainingFolder folder;
    const auto file = folder.path("choices.json");
    const auto trained = [&](const std::string& out) {
        run_with(folder, {"STAND_IN_CUBLASLT_SECONDS=3e-4,2e-4,1e-4"}, 1,
                 flags_of(folder, out, {"--tune-file", file})).exits(0);
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

TEST_CASE("an algorithm that fails when timed is left out; one with which the GPU fails is named", "[stand_in]") {
    const TrainingFolder folder;
    const auto run = [&](const std::string& fault, const Texts& flags) {
        return run_with(folder, {"STAND_IN_FAIL=" + fault}, 1,
                        flags_of(folder, fault, flags + Texts{"--tune-file", folder.path("choices.json")}));
    };
    run("cublasLtMatmul:2", {}).exits(0);
    CHECK_THAT(read_bytes(folder.path("choices.json")), Contains("; 1 failed to run: cublasLtMatmul failed for "));
    fs::remove(folder.path("choices.json"));

    const std::string product = run("cublasLtMatmul:2+", {}).exits(1);
    CHECK_THAT(product,
               Contains("error: the GPU failed when matmul forward fp32, rows 16, in_channels 32, out_channels 96, "
                        "bias, bare, algorithm 2 of 3, was timed: cublasLtMatmul failed for ") &&
                   Contains("; --tune=off uses the library's first"));
    CHECK_THAT(run("cudaLaunchKernelExC:1+", {"--dtype", "bf16", "-e", "custom:l=1,h=1,c=64,t=16"}).exits(1),
               Contains("error: the GPU failed when attention auto bf16, ") && Contains(": flash, was timed: "));
}

TEST_CASE("--log-gpu logs NVML's readings of rank 0's own GPU", "[stand_in]") {
    struct Case {
        const char* nvml;
        std::string gpu, note;  // of GPU 2
    };
    const Case given = GENERATE(values<Case>({
        {"", R"({"energy_j":null,"mean_power_w":null,"power_w":252.5,)"
             R"("sm_mhz":1982.0,"memory_mhz":2621.0,"temperature_c":63.0,)"
             R"("memory_used_bytes":1073741826.0,"utilization":0.99,"throttle_reasons":["sw_power_cap"]})", ""},
        {"nvmlDeviceGetPowerUsage:3,nvmlDeviceGetCurrentClocksThrottleReasons:3",
         R"({"energy_j":null,"mean_power_w":null,"power_w":null,)"
         R"("sm_mhz":1982.0,"memory_mhz":2621.0,"temperature_c":63.0,)"
         R"("memory_used_bytes":1073741826.0,"utilization":0.99,"throttle_reasons":null})", ""},
        {"nvmlInit_v2:9", "null",
         "note: --log-gpu: \"gpu\" is null in the log: the result of nvmlInit is \"Driver Not Loaded\"; "},
    }));
    CAPTURE(given.nvml);
    const TrainingFolder folder;
    const std::string output = run_with(folder, {std::string("STAND_IN_NVML=") + given.nvml}, 1,
                                        flags_of(folder, "out", {"--tune=off", "--device", "2", "--log-gpu"})).exits(0);
    const auto steps = folder.log("out", "step");
    REQUIRE(steps.size() == 2);
    for (const auto& step : steps) CHECK(step["gpu"] == llmc::parse_json(given.gpu));
    const auto note = output.find("note: --log-gpu");
    CHECK((note != std::string::npos) == !given.note.empty());
    if (!given.note.empty()) {
        CHECK_THAT(output, Contains(given.note));
        CHECK(output.find("note: --log-gpu", note + 1) == std::string::npos);
    }
}

TEST_CASE("the CUDA build saves on a signal, and resumes from a checkpoint", "[stand_in]") {
    const TrainingFolder folder;
    const Texts command = Texts{"env", "STAND_IN_SCHEDULE=late", program("train_gpt2")} +
                          flags_of(folder, "out", {"-x", "100000", "--tune=off"});
    Process process(command, folder.path("interrupted.txt"));
    CHECK(process.prints("step 2/"));
    process.signal(SIGTERM);
    process.result().exits(128 + SIGTERM);
    const auto saved = folder.log("out", "checkpoint");
    REQUIRE(saved.size() == 1);
    run_with(folder, {"STAND_IN_SCHEDULE=random"}, 1,
             flags_of(folder, "next", {"-e", saved[0]["folder"].get<std::string>(), "--tune=off"})).exits(0);
    CHECK(folder.log("next", "val")[0]["loss"].get<double>() < folder.log("out", "val")[0]["loss"].get<double>());
}

TEST_CASE("the stand-ins report errors of a program on the device, and report nothing without an error", "[stand_in]") {
    struct Case {
        const char* name;
        Texts says;
    };
    const auto [name, says] = GENERATE(values<Case>({
        {"nothing", {}},
        {"host reads device memory",
         {"the host touches device memory, byte 68 of an allocation of 4096, at ", "; cudaMalloc at "}},
        {"kernel past the end", {"0 bytes past the end of an allocation of 4096; ", "; cudaMalloc at "}},
        {"kernel on host memory", {"host memory or unmapped memory"}},
        {"copy past the end", {"\"cudaMemcpyAsync\" writes 4100 bytes at byte 0 of an allocation of 4096"}},
        {"use after free",
         {"\"cudaMemsetAsync\" writes 4096 bytes at byte 0 of an allocation of 4096, which was freed; "
          "cudaMemsetAsync at ", "; cudaMalloc at ", "; cudaFree at "}},
        {"copy from pinned memory after free",
         {"\"cudaMemcpyAsync\" touches pinned memory at byte ", " of an allocation of 100, which was freed; ",
          "; cudaMallocHost at ", "; cudaFreeHost at "}},
        {"double free",
         {"cudaFree of byte 0 of an allocation of 100, which was freed, at ", "; cudaMalloc at ", "; cudaFree at "}},
        {"cudaFree of pinned memory", {"cudaFree of an address outside of device memory, at "}},
        {"leak", {"not freed at exit: 1 x allocation of device memory"}},
        {"event destroyed twice", {"a cudaEvent_t is released twice"}},
        {"pinned memory after free",
         {"the host touches pinned memory, byte 0 of an allocation of 100, which was freed, at ",
          "; cudaMallocHost at ", "; cudaFreeHost at "}},
        {"race of kernels", {"race: \""}},
        {"write concurrent with a read", {"race: \""}},
    }));
    for (const std::string schedule : kSchedules) {
        CAPTURE(name, schedule);
        const int code = says.empty() ? 0 : std::string(name) == "leak" ? 97 : 96;
        const std::string output = run_misuse("STAND_IN_SCHEDULE=" + schedule, name).exits(code);
        for (const std::string& text : says) CHECK_THAT(output, Contains("stand-in: ") && Contains(text));
        CHECK(output.empty() == says.empty());
    }
}

TEST_CASE("the stand-ins refuse unknown settings, and list the known ones", "[stand_in]") {
    const auto [told, says] = GENERATE(table<const char*, const char*>({
        {"STAND_IN_SCHEDULE=later", "STAND_IN_SCHEDULE is \"later\"; expected eager, late or random"},
        {"STAND_IN_SEED=", "STAND_IN_SEED is \"\"; expected a number"},
        {"STAND_IN_GPUS=1.5", "STAND_IN_GPUS is \"1.5\"; expected a number"},
        {"STAND_IN_FAIL=cudaMalloc",
         "STAND_IN_FAIL is \"cudaMalloc\"; expected FUNCTION:N, FUNCTION:N+ or FUNCTION:N@RANK"},
        {"STAND_IN_FAIL=cudaMaloc:1", "STAND_IN_FAIL is \"cudaMaloc:1\"; the stand-ins have no cudaMaloc"},
        {"STAND_IN_CUBLASLT=none", "; expected nothing, no-epilogues or invalid-epilogues"},
        {"STAND_IN_CUBLASLT_SECONDS=1,2", "; expected three numbers: A,B,C"},
        {"STAND_IN_NCCL_SECONDS=short", "STAND_IN_NCCL_SECONDS is \"short\"; expected a number"},
        {"STAND_IN_CALLS=", "STAND_IN_CALLS is \"\"; expected a file"},
        {"STAND_IN_SCHEDUL=late",
         "STAND_IN_SCHEDUL is not a variable of the stand-ins; expected one of STAND_IN_SCHEDULE, "},
    }));
    CHECK_THAT(run_misuse(told, "nothing").exits(96), StartsWith("stand-in: ") && Contains(says));
}

TEST_CASE("an error of the executor that runs a kernel ends the program", "[stand_in]") {
    CHECK_THAT(run_misuse("SIMT_ORDER=backward", "nothing").exits(96),
               StartsWith("stand-in: ") && Contains("SIMT_ORDER is \"backward\"") && Contains("gelu_forward"));
}

TEST_CASE("the stand-in for NCCL reports where the ranks' calls differ, instead of hanging", "[stand_in]") {
    struct Case {
        const char* name;
        Texts says;
    };
    const auto [name, says] = GENERATE(values<Case>({
        {"ranks do not wait for a collective", {"race: "}},
        {"ranks call different collectives",
         {"rank 0 is in all-gather of 512 float32, rank 1 in reduce-scatter of 512 float32"}},
        {"ranks send different numbers of elements",
         {"rank 0 is in broadcast of 100 float32 from rank 0, rank 1 in broadcast of 200 float32 from rank 0"}},
        {"a rank stays away", {"rank 0 has waited 2 s in launch 1, ", "for rank 1 (no launch started)"}},
    }));
    const TrainingFolder folder;
    const Result result =
        run_with(folder, {"STAND_IN_NCCL_SECONDS=2", "STAND_IN_SCHEDULE=late"}, 2, {name}, program("misuse"));
    CAPTURE(name, result.output);
    CHECK(result.exit_code != 0);
    for (const std::string& text : says) CHECK_THAT(result.output, Contains("stand-in: ") && Contains(text));
}

TEST_CASE("memory reused before the device has read it shows on a late schedule", "[stand_in]") {
    CHECK(run_misuse("STAND_IN_SCHEDULE=late", "pinned memory reused").exits(0) == "2\n");
}

// Every function of CUDA and its libraries fails, at its first call and at its last.
TEST_CASE("a failed call ends the CUDA build with one line that names it", "[stand_in]") {
    struct Run {
        int ranks;
        Texts flags;
        const char* of;  // prefix of the functions' names
    };
    const Run run = GENERATE(values<Run>({{1, {"--tune=off", "--dtype", "bf16"}, "cu"},
                                          {2, {"--tune=off", "--comm", "nccl", "-z", "2"}, "nccl"},
                                          {2, {"--tune=off", "--comm", "mpi", "-z", "2"}, "cudaEventRecord"}}));
    const TrainingFolder folder;
    Texts flags = flags_of(folder, "out", run.flags);
    flags.erase(std::ranges::find(flags, "-o"), std::ranges::find(flags, "-o") + 2);
    *(std::ranges::find(flags, "-d") + 1) = "32";
    auto counts = calls_of(folder, run.ranks, flags, run.of);
    if (run.of == std::string("nccl")) counts.emplace("ncclCommGetAsyncError", 1);  // called every 200 ms only
    REQUIRE(counts.size() >= (run.of == std::string("cudaEventRecord") ? 1 : 8));
    for (const auto& [function, count] : counts)
        for (const std::int64_t number : std::set<std::int64_t>{1, function == "cudaMemcpyAsync" ? 2 : 1, count}) {
            const std::string told = function + ":" + std::to_string(number) +
                                     (run.ranks > 1 && function != "ncclGetUniqueId" ? "@1" : "");  // rank 0's alone
            const Result result =
                run_with(folder, {"STAND_IN_FAIL=" + told, "STAND_IN_SCHEDULE=late", "MALLOC_MMAP_THRESHOLD_=2048"},
                         run.ranks, flags);  // freed host memory is then inaccessible
            CAPTURE(function, number, count, result.exit_code, result.output);
            CHECK_THAT(result.output, !Contains("stand-in:"));
            // Destructors do not throw; repeated queries succeed; other methods replace cuDNN.
            const bool may_pass = function.find("Destroy") != function.npos || function.find("Free") != function.npos ||
                                  function == "cudaGetDeviceCount" || function == "ncclCommGetAsyncError" ||
                                  function == "ncclCommAbort" || function == "cudaDeviceSynchronize" ||
                                  function == "cudnnCreate" || function == "ncclCommWindowDeregister" ||
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
