// options_test.cpp - parsing, errors and --help of the command line
#include <array>
#include <nlohmann/json.hpp>
#include <sstream>

#include "llmc/base/option.h"
#include "llmc/run/options/command_line.h"

#include "kernels/device/device.h"
#include "test/support/options_support.h"

using namespace llmc;
using test::parsed, test::read, test::refusal;

TEST_CASE("flags set their fields, as a letter and by name", "[options]") {
    const auto o = parsed({"-i", "a*.bin", "--val-data=b*.bin", "-b", "8", "--seq-len", "128", "-d", "4096", "-l",
                              "3e-3", "--shuffle", "--seed", "7", "-k", "wsd", "--cooldown-fraction", "0.3",
                              "--cooldown-shape", "1-sqrt"});
    CHECK(o.data.train == std::vector<std::string>{"a*.bin"});
    CHECK(o.data.val == std::vector<std::string>{"b*.bin"});
    CHECK(o.batch.micro_batch == 8);
    CHECK(o.batch.seq_len == 128);
    CHECK(o.batch.tokens == 4096);
    CHECK(o.schedule.curve.peak == 3e-3);
    CHECK(o.data.shuffle);
    CHECK(!o.data.overfit_batch);
    CHECK(o.seed == 7);
    CHECK((o.schedule.curve.kind == LrSchedule::wsd && o.schedule.curve.cooldown == 0.3 &&
           o.schedule.curve.shape == CooldownShape::one_minus_sqrt));
}

TEST_CASE("a value may be joined to a flag of one letter, and switches of one letter to each other", "[options]") {
    const RunSettings o = parsed({"-ia*.bin", "-l3e-4", "-b8", "-aoruns/small run"});
    CHECK(o.data.train == std::vector<std::string>{"a*.bin"});
    CHECK(o.schedule.curve.peak == 3e-4);
    CHECK(o.batch.micro_batch == 8);
    CHECK(o.data.overfit_batch);
    CHECK(o.checkpoints.output_dir == "runs/small run");
    CHECK(refusal({"-a3e-4"}).find("-a3e-4") != std::string::npos);
}

TEST_CASE("an option that is not set has the default that --help shows", "[options]") {
    CHECK(to_json(parsed({"-i", "x"}))["beta2"] == "auto");
    CHECK(to_json(parsed({"-i", "x", "--beta2", "0.9"}))["beta2"] == 0.9);
    CHECK(to_json(parsed({"-i", "x", "--optimizer", "auto"})) == to_json(parsed({"-i", "x"})));
    CHECK(to_json(all_decided(parsed({"-i", "x"})))["beta2"] == 0.95);
    const std::string help = help_text();
    const auto defaults = to_json(RunSettings{});
    for (const auto& [name, value] : defaults.items()) {
        CAPTURE(name);
        CHECK(help.find("--" + name) != std::string::npos);
    }
    CHECK(help.find("(default: 0.9)") != std::string::npos);
    CHECK(help.find("train_gpt2 ... --dry-run") < help.find("Usage:"));
    CHECK_THAT(help, test::Contains(" Optimizer options:\n") && test::Contains("  -l, --lr X "));
    std::istringstream words(help);  // which wraps lines at any word
    std::string unwrapped;
    for (std::string word; words >> word;) unwrapped += word + ' ';
    for (const char* text : {"auto, cudnn, flash or plain: ", "(default: auto)", "cosine, linear, constant or wsd: "})
        CHECK_THAT(unwrapped, test::Contains(text));
}

TEST_CASE("the error for an invalid value names the flag, the value and what was expected", "[options]") {
    const auto [arguments, message] = GENERATE(table<std::vector<std::string>, std::string>({
        {{"-b", "0"}, "--micro-batch is \"0\"; expected auto, or a whole number from 1 to 1048576"},
        {{"-d", "99999999999999999999999"}, "--total-batch-tokens is \"99999999999999999999999\"; expected a whole"},
        {{"-b", "auto", "-d", "0"}, "--micro-batch is auto without --total-batch-tokens; expected the tokens of a"},
        {{"-t", "0"}, "--seq-len is \"0\"; expected auto, or a whole number from 1"},
        {{"-b", "1048576", "-t", "1048576"},
         "--micro-batch times --seq-len is 1099511627776; expected at most 2147483647 tokens"},
        {{"-l", "-1"}, "--lr is \"-1\"; expected a number from 0 to 1000"},
        {{"--skip-loss-z", "-1"}, "--skip-loss-z is \"-1\"; expected a number from 0 to "},
        {{"--beta2", "1"}, "--beta2 is \"1\"; expected a number from 0 to 0.9999999"},
        {{"-z", "3"}, "--zero-stage is \"3\"; expected a whole number from 0 to 2"},
        {{"-k", "cosign"}, "--lr-schedule is \"cosign\"; expected cosine, linear, constant or wsd"},
        {{"-k", "wsd", "--cooldown-fraction", "1.1"}, "--cooldown-fraction is \"1.1\"; expected a number from 0 to 1"},
        {{"-k", "linear", "--cooldown-shape", "1-sqrt"}, "--cooldown-shape is set with --lr-schedule linear; expected"},
        {{"--dtype", "fp16"}, "--dtype is \"fp16\"; expected fp32 or bf16"},
        {{"-r", "all"}, "--recompute is \"all\"; expected none, gelu, gelu+layernorm or block"},
        {{"-x", "10", "--max-tokens", "1"}, "--max-tokens is 1; expected none with --max-steps 10; remove one of them"},
        {{"-u", "2", "--warmup-tokens", "1"}, "--warmup-tokens is 1; expected none with --warmup-steps 2; remove one"},
        {{"-x", "9", "--epochs", "2"}, "--max-steps is 9; expected none with --epochs 2; remove one of them"},
        {{"--max-tokens", "9", "--epochs", "2"}, "--max-tokens is 9; expected none with --epochs 2; remove one of"},
        {{"--optimizer", "\x1b[31mred\n"}, "--optimizer is \"\\x1b[31mred\\x0a\"; expected adamw"},
        {{"--muon-lr-scale", "2", "--optimizer", "onebit-adam"},
         "--muon-lr-scale is set with --optimizer onebit-adam; expected --optimizer muon"},
        {{"--optimizer", "onebit-adam", "--onebit-freeze-step", "0"},
         "--onebit-freeze-step is \"0\"; expected auto, or a whole number from 1"},
        {{"--optimizer", "onebit-adam", "--max-minutes", "9"},
         "--onebit-freeze-step is \"auto\" with --max-minutes as the length of the run; expected a number of updates"},
        {{"--epochs", "0"}, "--epochs is \"0\"; expected auto, or a whole number from 1 to 1000000"},
        {{"--optimizer", "onebit-adam", "--onebit-bits", "8"}, "--onebit-bits is 8; expected 1 or 32"},
        {{"--optimizer", "onebit-adam", "--onebit-scale", "layer"},
         "--onebit-scale is \"layer\"; expected bucket, tensor or block"},
        {{"--optimizer", "onebit-adam", "-z", "1"},
         "--zero-stage is 1 with --optimizer onebit-adam; expected 0; 1-bit Adam needs the whole momentum"},
        {{"--onebit-exclude", "wte", "--optimizer", "adamw"},
         "--onebit-exclude is set with --optimizer adamw; expected --optimizer onebit-adam"},
        {{"--eval-only"}, "--val-data is missing; expected validation shards, or examples with --hellaswag"},
        {{"--stop-after", "2"}, "--stop-after is set without validations; expected --val-data, and --val-every above"},
        {{"-j", "x", "--keep-best", "--keep-checkpoints", "0"},
         "--keep-best is set with --keep-checkpoints 0, which keeps all; expected"},
        {{"-j", "x", "--keep-best", "--keep-checkpoints", "1"}, "--keep-best is set without --output-dir; expected"},
        {{"-o", "\xff"}, "--output-dir is \"\xff\"; expected UTF-8"},
        {{"-v", "5"}, "--val-data is missing; expected validation shards, because --val-every is set"},
        {{"-x", "1", "stray.bin"},
         "the argument \"stray.bin\" is not understood; expected flags only; see train_gpt2 --help; quote a glob"},
    }));
    CAPTURE(message);
    const std::string said = refusal(arguments);
    CHECK_THAT(said, test::StartsWith(message));
    CHECK(said.find("0.99999990000000005") == said.npos);
}

TEST_CASE("an optimizer's own flags begin with its name, by which they are refused with others", "[options]") {
    for (const auto& [name, kind] : kOptimizers) {
        std::any own = kind->own();
        OptionList list;
        kind->flags(list, own);
        for (const Option& option : list.options) CHECK(option.flag.starts_with(name.substr(0, name.find('-'))));
    }
}

TEST_CASE("the error for an unknown flag suggests a similar one", "[options]") {
    CHECK(refusal({"--optimiser", "adamw"}) ==
          "the flag \"--optimiser\" is unknown; expected one of those that train_gpt2 --help shows; did you mean "
          "--optimizer?");
    CHECK_THAT(refusal({"--onebit-f=3"}), test::StartsWith("the flag \"--onebit-f\"") &&
                                               test::EndsWith("did you mean --onebit-freeze-step?"));
    CHECK(refusal({"--optimizer", "admw"}) ==
          "--optimizer is \"admw\"; expected adamw, onebit-adam or muon; did you mean adamw?");
    CHECK_THAT(refusal({"--", "-x", "3"}), test::StartsWith("the flag \"--\" is unknown"));
    CHECK_THAT(refusal({"--every", "3"}),
               test::EndsWith("did you mean --log-every, --val-every or --major-every?"));
    CHECK(refusal({"--shuffle=maybe"}) ==
          "--shuffle is \"maybe\"; expected auto, on, off, true, false, yes, no, 1 or 0, or the flag alone");
}

TEST_CASE("a flag without its value does not use the next flag as the value", "[options]") {
    CHECK(refusal({"-o", "--shuffle"}) ==
          "--output-dir is followed by the flag \"--shuffle\"; expected a value; if that is the value, join it: "
          "--output-dir=...");
    for (const char* const next : {"-b", "--lr=0.1", "--help"})
        CHECK_THAT(refusal({"--prompt", next}), test::StartsWith("--prompt is followed by the flag"));
    CHECK(refusal({"-l"}) == "--lr is without a value; expected its value after it; see --help");
    CHECK(parsed({"-i", "x", "--prompt=--shuffle"}).samples.prompt == "--shuffle");
    CHECK(parsed({"-i", "x", "--prompt", "--other"}).samples.prompt == "--other");  // not a known flag
}

TEST_CASE("options that differ from their defaults are printed as flags that a shell can parse", "[options]") {
    const RunSettings o = parsed({"-i", "it's/*.bin", "--lr", "3e-3", "--shuffle", "-b", "4", "--prompt", "a b"});
    CHECK(flags_of(o, true) ==
          std::vector<std::string>{"--train-data='it'\\''s/*.bin'", "--micro-batch=4", "--shuffle", "--lr=0.003",
                                   "--prompt='a b'"});
    CHECK(flags_of(parsed({"-i", "x", "--prompt", "it's\na\\b"}), true).back() == "--prompt=$'it\\'s\\x0aa\\\\b'");
    const auto others = flags_of(o, false);
    CHECK(others.size() + 5 == to_json(o).size());
    for (const char* flag :
         {"--val-data=''", "--seq-len=auto", "--pad-last=off", "--lr-schedule=auto", "--keep-best=auto"})
        CHECK_THAT(others, test::VectorContains(std::string(flag)));
    CHECK(to_json(parsed(flags_of(parsed({"-i", "x", "-b", "8"}), true)))["micro-batch"] == 8);
}

TEST_CASE("llm.c's values of switches are accepted", "[options]") {
    CHECK(to_json(parsed({"-i", "x", "-a", "1"}))["overfit-batch"] == true);
    CHECK(to_json(parsed({"-i", "x", "-a", "0"}))["overfit-batch"] == false);
    CHECK(to_json(parsed({"-i", "x", "-a", "-f", "0"}))["overfit-batch"] == true);
    CHECK(to_json(parsed({"-i", "x", "--shuffle", "1", "-x", "1"}))["shuffle"] == true);
    CHECK(to_json(parsed({"-i", "x", "-a=1"}))["overfit-batch"] == true);
    for (const char* off : {"off", "false", "False", "no", "0"}) {
        CAPTURE(off);
        CHECK(to_json(parsed({"-i", "x", std::string("--shuffle=") + off}))["shuffle"] == false);
        CHECK(to_json(parsed({"-i", "x", "--shuffle", off}))["shuffle"] == false);
    }
    for (const char* on : {"on", "true", "True", "yes", "1"})
        CHECK(to_json(parsed({"-i", "x", "--shuffle=" + std::string(on)}))["shuffle"] == true);
    CHECK(to_json(parsed({"-i", "x", "--shuffle=auto"})) == to_json(parsed({"-i", "x", "--shuffle", "auto"})));
    CHECK(to_json(parsed({"-i", "x", "--shuffle", "auto"}))["shuffle"] == "auto");
    // A value may look like a flag, and may have several lines.
    CHECK(to_json(parsed({"-i", "x", "--prompt=a\n--b=c\rd"}))["prompt"] == "a\n--b=c\rd");
    CHECK(to_json(parsed({"-i", "x", "--prompt="}))["prompt"] == "");
    CHECK(to_json(parsed({"-i", "x", "--prompt", "-nk"}))["prompt"] == "-nk");
}

TEST_CASE("the error for a flag or value of another program names ours, or says why there is none", "[options]") {
    using Pairs = std::vector<std::pair<std::string, std::string>>;
    for (const auto& [theirs, ours] : Pairs{
             // llm.c
             {"-sl", "--skip-loss-z"}, {"-sg", "--skip-norm-z"}, {"-nk", "--keep-checkpoints"}, {"-lg", "--log-gpu"},
             {"-nm", "--major-every"}, {"-m", "--val-tokens; it counts tokens, not batches"}, {"-pm", "--comm"},
             // nanoGPT
             {"--batch_size", "--micro-batch; sequences in one pass"}, {"--learning-rate", "--lr"},
             {"--min-lr", "--final-lr-fraction; a fraction of --lr"}, {"--wandb_log", "dev/export_runs.py"},
             // Hugging Face's Trainer, torchtitan and others
             {"--per_device_train_batch_size", "--micro-batch; "}, {"--warmup_ratio", "--warmup-steps; in steps"},
             {"--weight_decay", "--weight-decay"}, {"--output_dir", "--output-dir"}, {"--bf16", "--dtype bf16"},
             {"--training.local_batch_size", "--micro-batch; "}, {"--training.steps", "--max-steps"},
             {"--steps", "--max-steps"}, {"--save-every", "--checkpoint-every"}, {"-lr", "--lr"},
             {"--muon", "--optimizer muon"}, {"--adamw", "--optimizer adamw; otherwise the run takes muon"},
             {"--val-split", "--val-data; dev/tokenize --hold-out K"}, {"--no-shuffle", "--shuffle=off"},
             {"--decay-steps", "--cooldown-fraction; with --lr-sch"}, {"--minimum-lr", "--final-lr-fraction"},
             {"--push-to-hub", "hf upload; after the run, without"}, {"--batch-ramp", "--batch-schedule; FROM:TOKENS"},
             {"--data_weights", "--train-data; with a weight after"}})
        for (const std::string& word : {theirs, theirs + "=8"})
            CHECK_THAT(refusal({word}), test::StartsWith("the flag \"" + theirs + "\" is unknown; expected " + ours));
    for (const auto& [theirs, reason] : Pairs{
             {"-w", "fp32 master weights are always kept"}, {"-ge", "autotuning decides"}, {"--mup", "initial weights"},
             {"-pn", "mpirun or srun sets it"}, {"--dropout", "models are trained without"},
             {"--compile", "the kernels are compiled"}, {"--fp16", "fp16 would need loss scaling"},
             {"--use_ema", "the decay of the learning rate"}, {"--swa", "the decay of the learning rate"},
             {"--rope", "positions are learned"}, {"--lora", "all weights are trained"}})
        CHECK_THAT(refusal({theirs}),
                   test::StartsWith("the flag \"" + theirs + "\" is unknown; there is none, because " + reason));
    CHECK_THAT(refusal({"-h", "1"}), test::StartsWith("the flag \"-h 1\" is unknown; expected --hellaswag; it takes a "
                                                      "file; -h alone prints the help"));
    for (const auto& [flag, value, ours] : std::vector<std::array<std::string, 3>>{
             {"--resume", "1", "auto; "}, {"--resume", "0", "never; "}, {"--recompute", "0", "none; "},
             {"--recompute", "2", "gelu+layernorm; "}, {"--init", "gpt2:d12", "d12; "},
             {"--dtype", "bfloat16", "bf16; "}, {"--max-steps", "-1", "0; which is as many steps as --epochs"},
             {"--dtype", "float16", "fp32 or bf16; fp16 would need loss scaling"},
             {"--device", "cuda:1", "the index of a GPU, from 0; the build selects CPU"}})
        CHECK_THAT(refusal({flag, value}), test::StartsWith(flag + " is \"" + value + "\"; expected " + ours));
}

TEST_CASE("training needs training shards, and only a validation needs others", "[options]") {
    CHECK_THROWS_WITH(parsed({"-j", "val"}), test::StartsWith("--train-data is missing; expected training shards"));
    CHECK(parsed({"-i", "x", "-v", "0"}).validation.every == 0);
    const test::ScratchFolder folder;  // of a run
    const std::string out = folder.path().string();
    const auto refused = [&] { return test::error_of([&] { parsed({"-o", out}); }); };
    CHECK_THAT(refused(), test::EndsWith("make shards with dev/tokenize, or see --help"));
    test::write_bytes(folder / kOptionsName, "{}");
    CHECK_THAT(refused(), test::EndsWith("; -y auto resumes the run in " + out));
    parsed({"--help"}, Request::help);
    parsed({"--version"}, Request::version);
}

TEST_CASE("--tf32 needs a GPU", "[options]") {
    if (device::is_gpu()) CHECK(to_json(parsed({"-i", "x", "--tf32"}))["tf32"] == true);
    else CHECK_THAT(refusal({"-i", "x", "--tf32"}), test::StartsWith("--tf32 is set on a CPU; expected a GPU"));
}

TEST_CASE("--fp8 needs bf16, 16 channels and a GPU that has it", "[options][fp8]") {
    CHECK(to_json(parsed({"-i", "x", "--fp8", "head", "--dtype", "bf16"}))["fp8"] == "head");
    CHECK(refusal({"-i", "x", "--fp8", "head-backward", "--dtype", "fp32"}) ==
          "--fp8 is head-backward with --dtype fp32; expected --dtype bf16; add it, or use --fp8 off");
    CHECK_THAT(refusal({"-i", "x", "--fp8", "on"}), test::StartsWith("--fp8 is \"on\"; expected off, head-backward"));
    const auto refused = [](int capability, int channels) {
        return test::error_of([&] {
            require_fp8(Fp8::head, {.channels = channels}, {.name = "NVIDIA A100", .compute_capability = capability});
        });
    };
    CHECK(refused(0, 32) == "accepted");  // a CPU
    CHECK(refused(89, 32) == "accepted");
    CHECK_THAT(refused(80, 32), test::Contains("capability of NVIDIA A100 is 8.0; expected 8.9 or later"));
    CHECK_THAT(refused(90, 8), test::Contains("the number of channels is 8; expected a multiple of 16; use --fp8"));
}

TEST_CASE("options come from a file, and flags override them", "[options]") {
    const test::ScratchFolder folder;
    const std::string file = folder / "a.json";
    test::write_bytes(file, R"(// a run
        {"train-data": "a*.bin",  // shards
         "lr": 3e-4, "max-steps": 7, "shuffle": true, "micro-batch": "auto", "total-batch-tokens": 8192,
         "onebit-freeze-step": "auto"})");
    const CommandLine line = read({"--config", file, "-l", "1e-3", "--seed=3"});
    CHECK(line.settings.data.train == std::vector<std::string>{"a*.bin"});
    CHECK(line.settings.schedule.curve.peak == 1e-3);
    CHECK(line.settings.length.steps == 7);
    CHECK(line.settings.data.shuffle);
    CHECK(line.settings.batch.micro_batch == 0);
    CHECK(line.given == std::set<std::string>{"train-data", "lr", "max-steps", "shuffle", "micro-batch",
                                              "total-batch-tokens", "onebit-freeze-step", "seed"});
    CHECK(parsed({"--config=" + file, "--epochs", "2"}).length.steps == 0);  // not the file's
    CHECK(parsed({"--config", file, "--shuffle=false"}).data.shuffle == false);

    const auto refusal_of = [&](const std::string& text) {
        test::write_bytes(file, text);
        return refusal({"--config", file});
    };
    CHECK(refusal_of("{\"lr\": \"fast\"}") == file + ": lr is \"fast\"; expected a number from 0 to 1000");
    CHECK(refusal_of("{\"lr\": [1]}") ==
          file + ": lr is [1]; expected text, a number, true or false; or for train-data and val-data a list of texts");
    CHECK(refusal_of("{\"shuffle\": 2}") == file + ": shuffle is \"2\"; expected true, false or auto");
    CHECK(refusal_of("{\"warm-up-steps\": 2}") ==
          file + ": the name \"warm-up-steps\" is unknown; expected the long name of a flag in train_gpt2 --help; "
                 "did you mean warmup-steps?");
    CHECK(refusal_of("{\"help\": true}") ==
          file + ": the name \"help\" is no option of a run; expected the long name of another flag; remove it");
    CHECK_THAT(refusal_of("{\"max-steps\": -1}"), test::StartsWith(file + ": max-steps is \"-1\"; expected 0"));
    CHECK_THAT(refusal_of("{\"batch_size\": 2}"), test::Contains("is unknown; expected micro-batch"));
    CHECK_THAT(refusal_of("{\"--lr\": 2}"), test::Contains("is unknown; expected lr"));
    CHECK_THAT(refusal_of("{\"lr\": 1,\n \"lr\": 2}"), test::Contains("each key once"));
    CHECK_THAT(refusal_of("{\"lr\": 1,\n \"seed\": }"), test::Contains("invalid at byte 20, in line 2; expected JSON"));
    CHECK_THAT(refusal_of("{\"lr\": 1e400}"),
               test::Contains("is invalid (number overflow parsing '1e400'); expected JSON"));
    CHECK(refusal_of("{\"optimizer\": \"mu\\u0000on\"}") ==
          file + ": optimizer is \"mu\\x00on\"; expected text without the character NUL");
    CHECK_THAT(refusal({"--config", (folder / "none").string()}), test::Contains("is missing; expected a file"));
    CHECK_THAT(refusal({"--config", ""}), test::StartsWith("the file of --config \"\" is missing; expected a file"));
    CHECK_THAT(refusal({"--config", folder.path().string()}), test::Contains("a folder; expected a file; pass a file"));
}

TEST_CASE("flags that need another one's value have their defaults if a later source changes that", "[options]") {
    const test::ScratchFolder folder;
    const std::string file = folder / "a.json";
    const auto [text, flag, given, name, standard] = GENERATE(table<const char*, const char*, const char*, std::string,
                                                                    nlohmann::json>({
        {R"("lr-schedule": "wsd", "cooldown-fraction": 0.3)", "--lr-schedule=cosine", "--cooldown-fraction=0.4",
         "cooldown-fraction", 0.2},
        {R"("optimizer": "muon", "muon-momentum": 0.5)", "--optimizer=adamw", "--muon-momentum=0.4", "muon-momentum",
         "auto"},
        {R"("outer-steps": 4, "outer-bits": 4)", "--outer-steps=0", "--outer-bits=4", "outer-bits", 32}}));
    test::write_bytes(file, std::string("{\"train-data\": \"x\", ") + text + "}");
    CHECK(to_json(parsed({"--config", file}))[name] != standard);
    CHECK(to_json(parsed({"--config", file, flag}))[name] == standard);
    CHECK_THAT(refusal({"--config", file, flag, given}), test::StartsWith("--" + name + " is set with "));
}

TEST_CASE("all options as a file give the same options", "[options]") {
    const test::ScratchFolder folder;
    const std::string file = folder / "a.json";
    const RunSettings o =
        parsed({"-i", "x", "-l", "1.1e-3", "-b", "auto", "-d", "1024", "-f=false", "--prompt", "a \"b\"\n"});
    test::write_bytes(file, config_text(o));
    CHECK(to_json(parsed({"--config", file})) == to_json(o));
    test::write_bytes(file, to_json(o).dump());  // as in the log
    CHECK(to_json(parsed({"--config", file})) == to_json(o));
    CHECK(parsed({"--print-config", "-l", "2"}, Request::print_config).schedule.curve.peak == 2);
}

TEST_CASE("the length of a run is a time if only --max-minutes limits it", "[options][timed]") {
    const auto is_timed = [](std::vector<std::string> flags) {
        flags.insert(flags.end(), {"-i", "x"});
        return parsed(flags).length.is_timed();
    };
    CHECK(is_timed({"--max-minutes", "3"}));
    CHECK(is_timed({"--max-minutes", "3", "-x", "0", "--epochs", "auto"}));
    CHECK_FALSE(is_timed({"--max-minutes", "3", "-x", "10"}));
    CHECK_FALSE(is_timed({"--max-minutes", "3", "--epochs", "1"}));
    CHECK_FALSE(is_timed({}));
    CHECK_FALSE(is_timed({"--max-minutes", "3", "--max-tokens", "10"}));
    CHECK(parsed({"-i", "x"}).length.passes() == 1);
    // Checkpoints of versions before 0.3.0 have "epochs": 1, and stay runs of steps.
    nlohmann::json before = to_json(parsed({"-i", "x", "--max-minutes", "3"}));
    CHECK(continued(read({"-o", "o", "-y", "auto"}), before, "state.json").settings.length.is_timed());
    before["epochs"] = 1;
    CHECK_FALSE(continued(read({"-o", "o", "-y", "auto"}), before, "state.json").settings.length.is_timed());
    before["max-steps"] = 7;
    const CommandLine both = continued(read({"-o", "o", "-y", "auto"}), before, "state.json");
    CHECK((both.settings.length.steps == 7 && both.settings.length.epochs == 1));
    CHECK(continued(read({"-o", "o", "-y", "auto", "-x", "9"}), before, "state.json").settings.length.steps == 9);
}

TEST_CASE("a length or warm-up in tokens replaces an earlier one in steps", "[options]") {
    const RunSettings tokens = parsed({"-i", "x", "--max-tokens", "1001", "--warmup-tokens", "100"});
    CHECK((tokens.length.tokens == 1001 && tokens.schedule.warmup_tokens == 100));
    const RunSettings steps = parsed({"-i", "x", "-x", "7", "-u", "2"});
    CHECK((steps.length.steps == 7 && steps.schedule.warmup_steps == 2));

    const test::ScratchFolder folder;
    const auto lengths = [](const RunSettings& o) {
        return std::vector<std::int64_t>{o.length.steps, o.length.tokens, o.length.epochs, o.schedule.warmup_steps,
                                         o.schedule.warmup_tokens};
    };
    const auto over = [&](const RunSettings& before, std::vector<std::string> flags) {
        const std::string file = folder / "a.json";
        test::write_bytes(file, config_text(before));
        auto resumed = flags, with_file = flags;
        with_file.insert(with_file.end(), {"--config", file});
        resumed.insert(resumed.end(), {"-o", "o", "-y", "auto"});
        const RunSettings same = parsed(with_file);
        CHECK(lengths(continued(read(resumed), to_json(before), "state.json").settings) == lengths(same));
        return lengths(same);
    };
    using Lengths = std::vector<std::int64_t>;
    CHECK(over(tokens, {}) == Lengths{0, 1001, 0, 0, 100});
    CHECK(over(tokens, {"-x", "5"}) == Lengths{5, 0, 0, 0, 100});
    CHECK(over(tokens, {"-x", "5", "-u", "3"}) == Lengths{5, 0, 0, 3, 0});
    CHECK(over(tokens, {"--epochs", "2"}) == Lengths{0, 0, 2, 0, 100});
    const RunSettings epochs = parsed({"-i", "x", "--epochs", "2"});
    CHECK(over(epochs, {"-x", "5"}) == Lengths{5, 0, 0, 0, 0});
    CHECK(over(epochs, {"--max-tokens", "9"}) == Lengths{0, 9, 0, 0, 0});
    CHECK(over(steps, {"--max-tokens", "9"}) == Lengths{0, 9, 0, 2, 0});
    CHECK(over(steps, {"--warmup-tokens", "9"}) == Lengths{7, 0, 0, 0, 9});
}

TEST_CASE("a resumed run has the options of its checkpoint, except those given", "[options]") {
    const auto before =
        all_decided(parsed({"-i", "x", "-l", "1e-3", "-x", "10", "--shuffle", "-o", "old", "--log-every", "5"}));
    nlohmann::json saved = to_json(before);
    saved["gone"] = 3;
    saved.erase("seed");  // of an older version
    const auto now = [&](std::vector<std::string> more) {
        more.insert(more.end(), {"-o", "new", "-y", "auto"});
        return continued(read(more), saved, "state.json").settings;
    };
    const RunSettings same = now({});
    nlohmann::json expected = to_json(before);
    expected["output-dir"] = "new";
    expected["resume"] = "auto";
    CHECK(to_json(same) == expected);
    const RunSettings other = now({"-l", "2e-3", "--shuffle=false", "--epochs", "3", "--log-every", "1"});
    CHECK((other.schedule.curve.peak == 2e-3 && !other.data.shuffle && other.length.steps == 0));
    CHECK(other.report.log_every == 1);  // given, although it is the default
    CHECK(other.data.train == std::vector<std::string>{"x"});
    saved["lr"] = -1;
    CHECK_THROWS_WITH(now({}), "state.json: lr is \"-1\"; expected a number from 0 to 1000");
}
