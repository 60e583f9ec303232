// refusals_test.cpp - commands that a run refuses before anything is written, each with one line that says why
#include "test/support/hellaswag_support.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

struct Refused {
    Texts flags, says;
};

void check_refusals(const TrainingFolder& folder, const Texts& common, const std::vector<Refused>& rows) {
    for (const Refused& row : rows) {
        CAPTURE(row.flags);
        const std::string output = folder.refuse(common + Texts{"-o", folder.path("out")} + row.flags);
        const auto line = output.substr(std::min(output.find("error: "), output.size()));
        CHECK(std::count(line.begin(), line.end(), '\n') == 1);
        for (const std::string& part : row.says) CHECK_THAT(line, Contains(part));
        CHECK(!fs::exists(folder.path("out")));
    }
}

}  // namespace

TEST_CASE("an error is one line that names the value, and nothing is written", "[run]") {
    const TrainingFolder folder;
    ShardBytes(std::vector<std::uint16_t>(100, 1)).write(folder.path("gpt2.bin"));
    const std::string hellaswag = HellaSwagBytes(random_hellaswag(1, 257, 5)).write(folder.path("hellaswag.bin"));
    fs::create_directory(folder.path("damaged"));
    write_bytes(folder.path("damaged/config.json"), "{\"model_type\": \"gpt2\"");
    write_bytes(folder.path("damaged/model.safetensors"), "123");
    check_refusals(folder, {"-x", "1"}, {
        {{"-i", folder.path("\x1b[31mred\n")}, {"\\x1b[31mred\\x0a"}},
        {{"-j", folder.path("gpt2.bin")}, {"vocabulary", "50257", "257"}},
        {{"-t", "33", "-b", "1"}, {"--seq-len is 33", "the model's 32 positions"}},
        {{"-e", "gpt2"}, {"hf download openai-community/gpt2 ", "pass d12"}},
        {{"-e", "gpt3:c12288"}, {"--micro-batch is 4", "memory plan", "not even one sequence fits"}},
        {{"-e", folder.path("damaged")}, {"damaged/"}},
        {{"-x", "0", "--max-tokens", "65", "--warmup-tokens", "129"},
         {"--warmup-tokens is 129, 3 steps; expected at most the 2 steps of --max-tokens 65"}},
        {{"--attention", "flash"}, {"--attention is \"flash\"; expected auto"}},
        {{"-o", folder.path("train_0.bin/out")}, {"--output-dir", "train_0.bin/out"}},
        {{"--device", "99"}, {"--device is 99"}},
        {{"-e", "custom:l=2,h=2,c=32,t=32,v=300"}, {"vocabulary", "300", "257", "--allow-larger-vocabulary"}},
        {{"-e", "custom:l=2,h=2,c=32,t=32,v=200", "--allow-larger-vocabulary"}, {"vocabulary", "200", "257"}},
        {{"--ranks", "8"}, {"--ranks is set without --dry-run"}},
        {{"--merges", "vocab.bpe"}, {"--merges", "50257"}},
        {{"--eval-only", "--max-minutes", "1"}, {"--max-minutes is 1; expected 0 with --eval-only"}},
        {{"--hellaswag", hellaswag},
         {"hellaswag.bin is 50257 ids, end of text 50256; expected that of the shards, 257 ids, end of text 256"}},
        {{"--hellaswag-every", "5"}, {"--hellaswag is missing"}},
    });
}

TEST_CASE("batch schedules that cannot be are refused", "[run][batch_schedule]") {
    const TrainingFolder folder;
    std::string many = "0:192";
    for (int i = 1; i < 10000; ++i) many += ',' + std::to_string(1000 * i) + ":192";
    const auto of = [](const std::string& schedule, const std::string& says) {
        return Refused{{"-t", "16", "--batch-schedule", schedule}, {says}};
    };
    check_refusals(folder, {"-x", "10", "-b", "1"}, {
        of("192", "expected entries FROM:TOKENS, such as 0:65536,200M:131072"),
        of("0:192,", "is \"0:192,\", with an empty entry; expected entries"),
        of("0:192,x", "is \"0:192,x\", with the entry \"x\"; expected entries"),
        of("64:192", "entry 1: its first token is 64; expected 0, the start of the run"),
        of("0:192,0:384", "entry 2: its first token is 0; expected 1 or more"),
        of("0:192,1k:384,900:768", "entry 3: its first token is 900; expected 1001 or more"),
        of("0:0", "entry 1 is \"0\"; expected a whole number from 1"),
        of("0:192,1k:99999999999999999999", "entry 2 is \"99999999999999999999\"; expected"),
        of("0:200", "a size of --batch-schedule is 200; expected a multiple of"),
        of("0:192,1M:384", "expected sizes that begin within the 10 steps"),
        of("0:192,10:384,20:768", "the size from 10 tokens on is without a step"),
        of(many, "entry 101 is too many; expected at most 100 entries"),
    });
    check_refusals(folder, {"-x", "10", "-b", "1", "--batch-schedule", "0:192,700:384,1900:768"}, {
        {{"-d", "192"}, {"--total-batch-tokens is 192; expected none with --batch-schedule"}},
        {{"--pad-last"}, {"expected steps of one size"}},
        {{"--overfit-batch"}, {"expected steps of one size"}},
        {{"--optimizer", "onebit-adam"}, {"expected 192 tokens in every step with --optimizer onebit-adam"}},
    });
}

TEST_CASE("options that outer steps cannot have are refused", "[run][outer]") {
    const TrainingFolder folder;
    const Texts one_worker{"--dry-run", "--ranks", "2", "--outer-workers", "1"};
    check_refusals(folder, {"-x", "13", "-d", "384", "--outer-steps", "4", "--outer-start-step", "3"}, {
        {{"--outer-lr", "0"}, {"--outer-lr is \"0\"; expected auto, or a number from 1e-06 to 2"}},
        {{"--outer-steps", "0", "--outer-start-step", "0", "--outer-lr", "0.5"},
         {"--outer-lr is set with --outer-steps 0; expected --outer-steps above 0; set that, or --outer-lr=auto"}},
        {{"--outer-start-step", "13"}, {"--outer-start-step is 13; expected less than the 13 steps of the run"}},
        {{"--outer-bits", "8"}, {"--outer-bits is 8; expected 32, 4 or 1"}},
        {{"--outer-bits", "4"}, {"--outer-bits is 4; expected 32 with one worker"}},
        {{"--outer-bits", "1", "--outer-errors"}, {"--outer-errors is set with --outer-bits 1; expected"}},
        {{"--outer-error-decay", "0.5"},
         {"--outer-error-decay is set without errors that are carried over; expected --outer-errors, or "
          "--outer-bits 1; set one of them, or --outer-error-decay 0.9"}},
        {{"-z", "1"},
         {"--zero-stage is 1; expected 0 with --outer-steps: each rank is a worker of its own, which has "
          "nothing to shard; use -z 0\n"}},
        {{"--outer-workers", "2"}, {"--outer-workers is 2; expected a number that divides the 1 rank"}},
        {one_worker, {"--zero-stage is 0; expected 1 or 2 with"}},
        {one_worker + Texts{"-z", "2"},
         {"--outer-start-step is 3; expected at most 0 with -z 2, whose gradients are divided within a worker"}},
        {one_worker + Texts{"-z", "1", "--outer-bits", "4"}, {"--outer-bits is 4; expected 32 with one worker"}},
        {{"--noise-scale", "rank"}, {"--noise-scale is rank with --outer-steps"}},
        {{"--optimizer", "onebit-adam"}, {"set with --optimizer onebit-adam; expected adamw or muon"}},
        {{"--dtype", "bf16", "--stochastic-rounding"}, {"--stochastic-rounding is set with --outer-steps"}},
        {{"-x", "0", "--max-minutes", "1"}, {"expected a number of steps or tokens"}},
    });
}
