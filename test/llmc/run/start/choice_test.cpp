// choice_test.cpp - what a run chooses, as arithmetic of facts and flags
#include "llmc/run/start/choice.h"

#include <map>

#include "kernels/base/error.h"
#include "test/support/catch.h"
#include "test/support/options_support.h"
#include "test/support/run_support.h"
#include "test/support/support.h"

using namespace llmc;
using namespace test;

namespace {

// A machine on which a matrix product of 1 FLOP takes 20 ps, with a text of 4 MB.
Facts facts_of_text(double tokens = 1.2e6) {
    Facts facts{.tokens = tokens, .bytes_per_token = 3.4, .val_tokens = 60000, .vocabulary = 2048};
    facts.speed.flop = 2e-11, facts.speed.element = 1e-9, facts.speed.parameter = 1e-9, facts.speed.orthogonal = 4e-11;
    facts.speed.dtype = kernels::DType::bf16, facts.speed.source = "a test";
    return facts;
}

// By flag; with the optimizer.
std::map<std::string, std::string> chosen(const Facts& facts, const std::vector<std::string>& flags,
                                          Chosen* all = nullptr) {
    RunSettings settings = read(std::vector<std::string>{"-i", "x", "-j", "y", "-o", "out"} + flags).settings;
    std::map<std::string, std::string> values;
    if (const auto optimizer = choose_optimizer(facts, settings)) {
        values["optimizer"] = optimizer->value;
        option_table(settings)["optimizer"].set("--optimizer", {optimizer->value});
    }
    const Chosen choice = choose(facts, settings);
    for (const ChosenValue& one : choice.values) values[one.flag] = one.value;
    if (all) *all = choice;
    return values;
}

}  // namespace

TEST_CASE("a run of some minutes chooses model, batch, rate and the rest", "[choice]") {
    Chosen three, hour;
    auto values = chosen(facts_of_text(), {"--max-minutes", "3"}, &three);
    CHECK(values["optimizer"] == "muon");
    CHECK_THAT(values["init"], StartsWith("custom:l="));
    CHECK(values["seq-len"] == "128");
    CHECK(chosen(facts_of_text(1e9), {"--max-minutes", "240"})["seq-len"] == "256");
    CHECK(values["lr-schedule"] == "linear");
    CHECK(values["final-lr-fraction"] == "0");
    CHECK(values["warmup-steps"] == "0");
    CHECK(values["dtype"] == "bf16");
    Facts slow = facts_of_text();
    slow.speed.dtype = kernels::DType::fp32;
    CHECK(chosen(slow, {"--max-minutes", "3"})["dtype"] == "fp32");
    CHECK(chosen(slow, {"--max-minutes", "3", "--fp8", "head"})["dtype"] == "bf16");
    CHECK(chosen(slow, {"--max-minutes", "3", "--stochastic-rounding"})["dtype"] == "bf16");
    CHECK(values["epochs"] == "auto");
    CHECK(values["shuffle"] == "on");
    REQUIRE(three.seconds);
    CHECK(*three.seconds < 180);
    CHECK(*three.seconds > 160);
    REQUIRE((three.larger && three.smaller && three.loss));
    CHECK((*three.larger >= 0 && *three.smaller >= 0));
    chosen(facts_of_text(), {"--max-minutes", "60"}, &hour);
    CHECK(ParameterTable(hour.model).parameters() > ParameterTable(three.model).parameters());
    CHECK(*hour.loss < *three.loss);
    // Tokens alone do not say what is too slow: the model has at most an eighth as many parameters.
    Chosen tokens;
    chosen(facts_of_text(), {"--max-tokens", "4M"}, &tokens);
    CHECK(ParameterTable(tokens.model).parameters() < 4.5e5);
    // More than four passes may be too many, and far more are not made.
    values = chosen(facts_of_text(3e5), {"--max-minutes", "60"});
    CHECK(std::stoi(values["epochs"]) > 1);
    CHECK(std::stoi(values["epochs"]) < 32);
    CHECK(std::stod(values["weight-decay"]) > 0.1);
    CHECK(std::stoi(values["warmup-steps"]) > 0);
    CHECK(values["stop-after"] == "5");
    CHECK(values["keep-best"] == "on");
    CHECK(values["keep-checkpoints"] == "1");
    CHECK(chosen(facts_of_text(), {"--max-minutes", "60", "--keep-checkpoints", "0"})["keep-best"] == "off");
    CHECK(chosen(facts_of_text(1e8), {"--max-minutes", "60"})["stop-after"] == "0");
}

TEST_CASE("every flag that is auto gets a value that is accepted, whatever is given", "[choice]") {
    for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
             {},
             {"-x", "100"},
             {"--max-tokens", "1M"},
             {"--epochs", "2"},
             {"--max-minutes", "10"},
             {"--max-minutes", "10", "-b", "3", "-t", "96"},
             {"-x", "100", "-d", "8192"},
             {"-x", "100", "--batch-schedule", "0:4096,100k:8192"},
             {"--optimizer", "onebit-adam", "-x", "100"},
             {"-v", "0", "--dtype", "fp32"},
             {"-e", "d12", "-x", "10"},
             {"--keep-best", "--max-tokens", "10M"},
             {"--warmup-tokens", "1000", "-x", "100"}})
        for (const int ranks : {1, 3, 8}) {
            Facts facts = facts_of_text(2e6);
            facts.ranks = ranks;
            RunSettings settings = read(std::vector<std::string>{"-i", "x", "-j", "y", "-o", "out"} + flags).settings;
            if (settings.model.init == "d12" && settings.decided.contains("init"))
                facts.model = model_by_name("d12", facts.vocabulary).config;
            CAPTURE(flags, ranks);
            for (const auto& [flag, value] : chosen(facts, flags)) option_table(settings)[flag].set(flag, {value});
            settings = all_decided(settings);
            check_together(settings, {});
            const std::int64_t step = sizes_of_steps(settings.batch, ranks).front().tokens;
            const bool given = flags.size() > 2 && (flags[2] == "-d" || flags[2] == "--batch-schedule");
            if (!given || ranks != 3)  // 4096 and 8192 are no multiples of 3
                CHECK(step % (settings.batch.seq_len * ranks * std::max<std::int64_t>(settings.batch.micro_batch, 1)) ==
                      0);
        }
}

TEST_CASE("given values stay, and the others follow them", "[choice]") {
    for (const auto& [rate, optimizer] : {std::pair("6.7e-3", "adamw"), {"6.8e-3", "muon"}})
        CHECK(chosen(facts_of_text(), {"-l", rate})["optimizer"] == optimizer);
    CHECK(chosen(facts_of_text(), {"-l", "1e-3", "--muon-momentum", "0.8"})["optimizer"] == "muon");
    CHECK(chosen(facts_of_text(), {"--onebit-bits", "32", "-x", "9"})["optimizer"] == "onebit-adam");
    CHECK(chosen(facts_of_text(), {"-l", "1e-3"}).count("lr") == 0);
    CHECK(chosen(facts_of_text(), {})["epochs"] == "4");
    CHECK(chosen(facts_of_text(), {"-x", "1000"})["log-every"] == "10");
    CHECK(chosen(facts_of_text(), {"-x", "199"}).count("log-every") == 0);
    // A slow model in a short time has few validations, of few tokens, and the fit says nothing about it.
    Facts slow = facts_of_text();
    slow.model = model_by_name("d12", 2048).config;
    Chosen short_run;
    auto values = chosen(slow, {"-e", "d12", "--max-minutes", "0.5"}, &short_run);
    CHECK(std::stod(values["val-tokens"]) <= 0.2 * short_run.tokens + 1024);
    CHECK_FALSE(short_run.loss);
    CHECK(chosen(facts_of_text(1e8), {"--max-minutes", "60"})["val-tokens"] != "16384");
    const auto rate = [](const std::vector<std::string>& flags) {
        return std::stod(chosen(facts_of_text(), flags)["lr"]);
    };
    const std::string model = "custom:l=4,h=4,c=128,t=256";
    CHECK(rate({"-e", model, "-d", "8192"}) > 1.3 * rate({"-e", model, "-d", "2048"}));
    CHECK(rate({"-e", model, "-d", "2048", "--optimizer", "adamw"}) < 0.3 * rate({"-e", model, "-d", "2048"}));
    Facts trained = facts_of_text();
    trained.model = model_by_name("d12", 50257).config, trained.is_trained = true;
    CHECK(chosen(trained, {"-e", "folder"})["optimizer"] == "adamw");
    CHECK(std::stod(chosen(trained, {"-e", "folder"})["lr"]) < 2e-4);
    CHECK(chosen(trained, {"-e", "folder"}).count("init") == 0);
}

TEST_CASE("attention stays within documents if rows hold several, and in a model that was trained so", "[choice]") {
    const std::vector<std::string> flags{"--max-minutes", "3", "-t", "256"};
    const auto mask_of = [&](const Facts& facts) { return chosen(facts, flags)["document-mask"]; };
    Facts facts = facts_of_text();
    CHECK(mask_of(facts) == "off");
    for (const auto& [tokens, mask] : {std::pair(129.0, "off"), {128.0, "on"}}) {
        facts.tokens_per_document = tokens;
        CHECK(mask_of(facts) == mask);
    }
    Facts on_gpu = facts, trained = facts;
    on_gpu.gpu = true;
    CHECK(mask_of(on_gpu) == "off");
    trained.model = model_by_name("d12", 2048).config, trained.is_trained = true;
    CHECK(mask_of(trained) == "off");
    for (const bool mask : {true, false}) {
        trained.document_mask = mask;
        CHECK(mask_of(trained) == (mask ? "on" : "off"));
    }
    CHECK(chosen(trained, flags).count("mask-document-start") == 0);
    trained.is_of_muon = trained.mask_document_start = true;
    CHECK(chosen(trained, flags)["optimizer"] == "muon");
    CHECK(chosen(trained, {"--max-minutes", "3", "-l", "1e-3"})["optimizer"] == "muon");
    CHECK(chosen(trained, flags)["mask-document-start"] == "on");
}

TEST_CASE("a text or a budget that is too small for any model is refused", "[choice]") {
    const auto refusal = [](const Facts& facts, const std::vector<std::string>& flags) {
        return error_of([&] { chosen(facts, flags); }, base::Blame::input);
    };
    CHECK_THAT(refusal(facts_of_text(100), {}), StartsWith("the training data is 100 tokens; expected at least 128"));
    CHECK_THAT(refusal(facts_of_text(), {"--max-minutes", "1e-5"}), StartsWith("--max-minutes is 1e-05; expected "));
    Facts unknown = facts_of_text();
    unknown.tokens = INFINITY;
    CHECK_THAT(refusal(unknown, {}), StartsWith("--init is auto, and no file matches --train-data; expected"));
    unknown.model = model_by_name("d12", 50257).config;
    Chosen assumed;
    CHECK(chosen(unknown, {"-e", "d12", "--epochs", "2"}, &assumed)["weight-decay"] == "0.1");
    CHECK(assumed.is_assumed);
    unknown.model.reset(), unknown.speed = {};
    CHECK_THAT(refusal(unknown, {"--max-minutes", "9"}), Contains("--peak-tflops"));
}

TEST_CASE("the expected loss falls with parameters and tokens, and passes count less and less", "[choice]") {
    const ModelConfig small = model_by_name("custom:l=2,h=2,c=64,t=256", 2048).config,
                      large = model_by_name("custom:l=4,h=4,c=128,t=256", 2048).config;
    const Facts text = facts_of_text(1.2e6), all = facts_of_text(INFINITY);
    CHECK(expected_loss(text, large, 1e6) < expected_loss(text, small, 1e6));
    CHECK(expected_loss(text, small, 1e6) == expected_loss(all, small, 1e6));
    CHECK(expected_loss(text, small, 5e6) > expected_loss(all, small, 5e6));
    CHECK(expected_loss(text, small, 5e6) < expected_loss(text, small, 4e6));
    const double parameters = 12 * 2 * 64 * 64 + 2048 * 64, most = 15.4 / (1 + parameters / 1.2e6),
                 at_most = expected_loss(all, small, (1 + most) * 1.2e6);
    CHECK(expected_loss(text, small, 1e9) >= at_most);
    CHECK(expected_loss(text, small, 1e9) < at_most + 0.01);
    Facts repetitive = text;
    repetitive.zstd_loss /= 4;
    CHECK(expected_loss(repetitive, small, 1e6) == Approx(expected_loss(text, small, 1e6) / 2));
}
