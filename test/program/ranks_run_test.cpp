// ranks_run_test.cpp - the program under mpirun: what it updates, validates and sends (the same training on any ranks:
// resume_test.cpp)
#include <cmath>

#include "kernels/grad_norm.h"
#include "llmc/weights/saved_model.h"
#include "test/support/model_support.h"
#include "test/support/run_support.h"

using namespace test;

TEST_CASE("the biases of keys keep their values with every optimizer and exchange", "[run][ranks][mpi]") {
    const Texts outer{"--outer-steps", "2", "--outer-bits", "1"};
    const auto [ranks, flags] = GENERATE_COPY(table<int, Texts>(
        {{1, {"--optimizer", "adamw", "--dtype", "bf16"}}, {1, {"--optimizer", "muon"}}, {2, {"-z", "2"}}, {2, outer},
         {2, {"--optimizer", "onebit-adam", "--onebit-freeze-step", "4"}}}));
    CAPTURE(flags);
    const TrainingFolder folder;
    // With an epsilon of 1e-4 Adam would amplify rounding a hundredfold.
    folder.run_on(ranks, folder.flags({"-b", "2", "-d", "384", "-x", "12", "-v", "6", "--val-tokens", "500", "--eps",
                                       "1e-3", "-q", "0", "-o", folder.path("a")}) + flags).exits(0);
    const llmc::ParameterTable table(llmc::SavedModel(folder.step("a", 12)).config());
    const std::vector<float> weights = weights_in(folder.step("a", 12));
    const auto bias = table.view(std::span(weights), table.block(1).qkv.bias);
    constexpr std::size_t kChannels = 32;
    const auto moved = [&](std::size_t part) {
        const float* const at = &bias[part * kChannels];
        return kChannels - std::size_t(std::count(at, at + kChannels, 0.0f));
    };
    CHECK(moved(0) == kChannels);
    CHECK(moved(1) == 0);
    CHECK(moved(2) == kChannels);
}

TEST_CASE("a validation has the loss of each pattern, as alone, and their mean", "[run][ranks][mpi]") {
    const int ranks = GENERATE(1, 2);
    const TrainingFolder folder;
    ShardBytes(std::vector<std::uint16_t>(301, 'a'), 257, 256).write(folder.path("other_0.bin"));
    ShardBytes(std::vector<std::uint16_t>(701, 'b'), 257, 256).write(folder.path("mix_0.bin"));
    const std::string a = folder.path("val_*.bin"), b = folder.path("other_*.bin"),
                      train = folder.path("train_*.bin"), mix = folder.path("mix_*.bin");
    int runs = 0;
    const auto evaluate = [&](const Texts& flags) {
        const std::string out = std::to_string(++runs);
        const Texts all = folder.flags(Texts{"--eval-only", "-o", folder.path(out)} + flags);
        const std::string text = folder.run_on(ranks, all).exits(0);
        return std::pair(folder.log(out, "val").at(0), text);
    };
    const auto [of_a, text_a] = evaluate({"-j", a});
    const auto of_b = evaluate({"-j", b}).first;
    CHECK_FALSE(of_a.contains("losses"));
    CHECK_THAT(text_a, !Contains("of the mean"));
    const double loss_a = of_a["loss"], loss_b = of_b["loss"];
    REQUIRE(std::fabs(loss_a - loss_b) > 1e-3);
    const auto check_mean = [&](const Texts& flags, double share_a, const std::string& plan) {
        CAPTURE(flags);
        const auto [both, text] = evaluate(flags);
        CHECK(both.value("losses", nlohmann::json()) == nlohmann::json{{a, loss_a}, {b, loss_b}});
        CHECK(both["valid_tokens"] == 999);
        CHECK(std::fabs(both["loss"].get<double>() - (share_a * loss_a + (1 - share_a) * loss_b)) < 1e-12);
        const auto bytes = [](const nlohmann::json& x) {  // per token
            return x["loss"].get<double>() / x["bits_per_byte"].get<double>();
        };
        CHECK(std::fabs(bytes(both) - (share_a * bytes(of_a) + (1 - share_a) * bytes(of_b))) < 1e-12);
        CHECK_THAT(text, Contains(plan) && Contains(" targets\n" + std::string(10, ' ') + " | ") &&
                             Contains(" | other\n") && !Contains("training shards, too"));
    };
    check_mean({"-j", a, b}, 699.0 / 999, "  69.97 % of the mean: " + a + ", 699 targets\n");
    if (ranks > 1) return;
    check_mean({"-i", train + ":0.25", mix + ":0.75", "-j", a, b}, 0.25, "  75 % of the mean, as " + mix + ": " + b);
    check_mean({"-i", train + ":3", mix + ":7", "-j", a + ":3", b + ":7"}, 0.3, "  30 % of the mean: " + a + ", 699");
    check_mean({"-i", train + ":1", "-j", a, b}, 699.0 / 999, "  30.03 % of the mean: " + b);
    CHECK_THAT(evaluate({"-i", train + ":1", mix + ":9", "-j", a}).second, !Contains("of the mean"));
    const Texts unclear{"-i", train + ":1", mix + ":1", folder.path("third") + ":1", "-j", a, b};
    write_bytes(folder.path("third"), read_bytes(folder.path("mix_0.bin")));
    CHECK_THAT(folder.run_on(ranks, folder.flags(unclear)).exits(2),
               Contains("the number of patterns of --val-data is 2; expected 3, in the order of --train-data, whose "
                        "weights they get, or a single one; or give each of them a weight, such as :0.5\n"));
}

TEST_CASE("a step reports the bytes that rank 0 sent for it, without those sent between steps", "[run][ranks][mpi]") {
    const TrainingFolder folder;
    // Each rank owns half of the elements and has 6 micro-batches of 2 sequences.
    const std::int64_t half =
        llmc::ParameterTable(llmc::model_by_name("custom:l=2,h=2,c=32,t=32", 257).config).elements() / 2;
    const std::int64_t row = sizeof(kernels::RankSums);
    using Way = std::tuple<const char*, Texts, std::int64_t>;  // name, flags, bytes on 2 ranks
    for (const auto& [name, flags, bytes] : std::vector<Way>{
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
            const std::string out = name + std::to_string(ranks);
            CAPTURE(out);
            folder.run_ranks(ranks, folder.flags(Texts{"-b", ranks == 1 ? "4" : "2", "-d", "384", "-x", "4", "-v", "2",
                                                       "--val-tokens", "500", "-s", "2", "-g", "4", "-n", "2", "-o",
                                                       folder.path(out)} + flags)).exits(0);
            CHECK(numbers(folder.log(out, "step"), "bytes_sent") ==
                  std::vector<double>(4, ranks == 1 ? 0 : double(bytes)));
        }
}
