// ranks_run_test.cpp - the program under mpirun: any number of ranks and any ZeRO stage train the same model on the
// same tokens
#include <cmath>

#include "kernels/grad_norm.h"
#include "llmc/weights/parameters.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

// 384 positions per step: 24 sequences for 1, 2, 3 or 4 ranks. With an epsilon of 1e-4 Adam would amplify rounding a
// hundredfold.
Texts flags_of(const TrainingFolder& folder, const std::string& out,
                                  const Texts& more = {}) {
    return folder.flags(Texts{"-b", "2", "-d", "384", "-x", "12", "-v", "6", "--val-tokens", "500", "--eps", "1e-3",
                              "-o", folder.path(out)} + more);
}

double largest_difference(const std::string& a, const std::string& b) {  // of the tensors; the headers are equal
    REQUIRE(a.size() == b.size());
    std::uint64_t header = 0;
    std::memcpy(&header, a.data(), sizeof header);
    double largest = 0;
    for (std::size_t at = 8 + header; at < a.size(); at += sizeof(float)) {
        float x, y;
        std::memcpy(&x, a.data() + at, sizeof x);
        std::memcpy(&y, b.data() + at, sizeof y);
        largest = std::max(largest, std::fabs(double(x) - y));
    }
    return largest;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
    return largest;
}

}  // namespace

TEST_CASE("1, 2, 3 and 4 ranks at ZeRO stages 0, 1 and 2 train the same", "[run][ranks][mpi]") {
    const TrainingFolder folder;
    const std::string alone = folder.run(flags_of(folder, "alone")).exits(0);
    const auto want = folder.losses("alone");
    const auto want_val = numbers(folder.log("alone", "val"), "loss");
    REQUIRE(want.size() == 12);
    // The effect of another summation order: one rank with micro-batches of 6 rows instead of 2.
    folder.run(flags_of(folder, "rounded", {"-b", "6"})).exits(0);
    const double loss_rounding = largest_difference(folder.losses("rounded"), want);
    const double model_rounding = largest_difference(folder.model("rounded", 12), folder.model("alone", 12));
    CAPTURE(loss_rounding, model_rounding);
    REQUIRE((model_rounding > 0 && loss_rounding < 1e-6 && model_rounding < 1e-5));
    REQUIRE(want.front() - want.back() > 0.5);  // otherwise the models could hardly differ
    constexpr double kTimes = 8;
    for (const int ranks : {1, 2, 3, 4}) {
        std::string stage_zero;
        for (const int stage : {0, 1, 2}) {
            const std::string out = "ranks" + std::to_string(ranks) + "-stage" + std::to_string(stage);
            CAPTURE(out);
            const std::string result = folder.run_ranks(ranks,
                                                        flags_of(folder, out, {"-z", std::to_string(stage)})).exits(0);
            // Only rank 0 prints. One rank prints no line on communication.
            const auto lines = [](const std::string& output) {
                const std::string after = output.substr(output.find("\ntraining data: "));
                return std::count(after.begin(), after.end(), '\n');
            };
            CHECK(lines(result) == lines(alone));
            CHECK(result.find("\nmodel: ") == result.rfind("\nmodel: "));
            const auto losses = folder.losses(out), val = numbers(folder.log(out, "val"), "loss");
            for (const char* const field : {"comm_hidden", "comm_wait_ms"})
                CHECK(folder.log(out, "step").back().contains(field) == (ranks > 1));
            CHECK(largest_difference(losses, want) <= kTimes * loss_rounding);
            CHECK(largest_difference(val, want_val) <= kTimes * loss_rounding);
            const std::string model = folder.model(out, 12);
            CHECK(largest_difference(model, folder.model("alone", 12)) <= kTimes * model_rounding);
            if (stage == 0) stage_zero = model;
            if (stage == 1) CHECK(model == stage_zero);
            if (ranks == 1 && stage == 0) CHECK(model == folder.model("alone", 12));
        }
    }
}

TEST_CASE("a step reports the bytes that rank 0 sent for it, without those sent between steps", "[run][ranks][mpi]") {
    const TrainingFolder folder;
    // Each rank owns half of the elements and has 6 micro-batches of 2 sequences. A row of sums has 9 modules.
    const std::int64_t half =
        llmc::ParameterTable(llmc::model_by_name("custom:l=2,h=2,c=32,t=32", 257).config).elements() / 2;
    const std::int64_t row = kernels::rank_sums_size(9) * sizeof(double);
    struct Way {
        const char* name;
        Texts flags;
        std::int64_t bytes;  // on 2 ranks
    };
    for (const Way& way : std::vector<Way>{
             {"all-reduce", {}, 2 * half * 4 + row},
             {"all-reduce-bf16", {"--reduce-dtype", "bf16"}, 2 * half * 2 + row},
             {"stage1", {"-z", "1"}, 2 * half * 4 + row},
             // Parameters are sent in bf16, and master weights are gathered for the checkpoints.
             {"stage1-bf16", {"-z", "1", "--dtype", "bf16"}, half * 4 + half * 2 + row},
             {"stage2", {"-z", "2"}, 6 * half * 4 + half * 4 + row},
             // Each rank sends the gradients of half of the matrices and the parameters of the other half.
             {"muon", {"--optimizer", "muon"}, 2 * half * 4 + row},
             {"muon-stage2", {"--optimizer", "muon", "-z", "2"}, 6 * half * 4 + half * 4 + row}})
        for (const int ranks : {1, 2}) {
            const std::string out = way.name + std::to_string(ranks);
            CAPTURE(out);
            folder.run_ranks(ranks, folder.flags(Texts{"-b", ranks == 1 ? "4" : "2", "-d", "384", "-x", "4", "-v", "2",
                                                       "--val-tokens", "500", "-s", "2", "-g", "4", "-n", "2", "-o",
                                                       folder.path(out)} + way.flags)).exits(0);
            CHECK(numbers(folder.log(out, "step"), "bytes_sent") ==
                  std::vector<double>(4, ranks == 1 ? 0 : double(way.bytes)));
        }
}
