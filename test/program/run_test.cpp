// run_test.cpp - the real program, started as a user starts it: its files, error messages and exit codes
#include <cmath>

#include "kernels/device/control_groups.h"
#include "llmc/base/number_text.h"
#include "llmc/comm/communicator.h"
#include "test/support/pattern.h"
#include "test/support/run_support.h"

using namespace test;

TEST_CASE("a run trains, validates, samples, logs and saves the model", "[run]") {
    const TrainingFolder folder;
    const std::string output = folder.train({"-x", "60", "-d", "128", "-v", "20", "-s", "30", "-g", "20", "-n", "25",
                                             "--shuffle", "-k", "wsd", "--cooldown-fraction", "0.5", "--cooldown-shape",
                                             "1-sqrt", "-o", folder.path("out")});
    const auto steps = folder.log("out", "step");
    REQUIRE(steps.size() == 60);
    CHECK(steps.front()["loss"].get<double>() > 5.0);
    CHECK(steps.back()["loss"].get<double>() < 2.0);
    CHECK(steps[30]["lr"].get<float>() == 1e-2f);
    CHECK(std::fabs(steps[45]["lr"].get<double>() - 1e-2 * (0.1 + 0.9 * (1 - std::sqrt(0.5)))) < 1e-8);
    CHECK(steps.back()["tokens"] == 128);
    CHECK(steps.back()["valid_tokens"] == 128);
    CHECK(steps.back()["tokens_so_far"] == 60 * 128);
    const bool peak_known = device::open(1).peaks.has_value();
    CHECK(steps.back().contains("mfu") == peak_known);
    if (peak_known) CHECK((steps.back()["mfu"].get<double>() > 0 && steps.back()["mfu"].get<double>() < 1));
    for (const char* const absent : {"comm_ms", "comm_hidden", "comm_wait_ms", "gpu"})
        CHECK_FALSE(steps.back().contains(absent));
    double parts = 0, all = 0;
    for (const auto& step : steps) {
        for (const char* const part : {"data_ms", "forward_backward_ms", "optimizer_ms", "enqueue_ms"})
            parts += step.value(part, 0.0);
        all += step["ms"].get<double>();
    }
    CHECK((parts > (device::is_gpu() ? 0 : all / 2) && parts < (device::is_gpu() ? INFINITY : all)));
    CHECK(steps[20]["tasks_ms"] > folder.log("out", "val")[1]["ms"]);
    const auto validations = folder.log("out", "val");
    CHECK(numbers(validations, "step") == std::vector<double>{0, 20, 40, 60});
    CHECK(validations.front()["valid_tokens"] == 699);
    CHECK(std::fabs(validations.front()["loss"].get<double>() - std::log(257.0)) < 0.2);
    CHECK(validations.back()["loss"].get<double>() < 2.0);
    const auto samples = folder.log("out", "sample");
    CHECK(numbers(samples, "step") == std::vector<double>{30, 60});
    CHECK(samples.back()["text"].get<std::string>().size() > 5);
    CHECK(output.find(samples.back()["text"].get<std::string>()) != std::string::npos);
    CHECK(numbers(folder.log("out", "checkpoint"), "step") == std::vector<double>{25, 50, 60});
    for (const char* step : {"step_00000025", "step_00000050", "step_00000060"})
        for (const char* file : {"model.safetensors", "config.json"})
            CHECK(fs::exists(fs::path(folder.path("out")) / step / file));
    CHECK(folder.log("out", "start").size() == 1);
    CHECK(folder.log("out", "end").front()["reason"] == "all steps completed");
}

TEST_CASE("a run starts from another run's model", "[run]") {
    const TrainingFolder folder;
    folder.train({"-x", "20", "-n", "10", "-o", folder.path("first")});
    const double saved = folder.log("first", "val").back()["loss"];
    const std::string init = GENERATE("first", "first/step_00000020", "first/step_00000020/model.safetensors");
    const Texts from{"-x", "1", "-e", folder.path(init)};
    const std::string output = folder.train(from + Texts{"-o", folder.path("second")});
    CHECK(folder.log("second", "val").front()["loss"].get<double>() == saved);
    const Texts as_muon{"--optimizer", "muon", "--dry-run", "-o", folder.path("fourth")};
    CHECK_THAT(folder.train(from + as_muon), Contains("note: a model that AdamW has trained may become worse") &&
                                                 Contains("Muon: orthogonalizing adds "));
    folder.train({"-x", "1", "--optimizer", "muon", "-o", folder.path("muon")});
    CHECK_THAT(folder.train(Texts{"-x", "1", "-e", folder.path("muon")} + as_muon), !Contains("AdamW has trained"));
    folder.train(from + Texts{"--eval-only", "-o", folder.path("third")});
    CHECK(folder.log("third", "val").front()["loss"].get<double>() == saved);
    const std::string note = "note: starts from the newest checkpoint, ", run = folder.path("first/step_000000");
    CHECK((output.find(note + run + "20\n") != std::string::npos) == (init == "first"));
    if (init != "first") return;
    const Texts newest = folder.flags({"-e", folder.path("first"), "--dry-run"});
    fs::resize_file(run + "20/model.safetensors", 1000);
    CHECK_THAT(folder.run(newest).exits(0), Contains("note: skips " + run + "20: ") && Contains(note + run + "10\n"));
    for (const char* const step : {"10", "20"}) fs::remove_all(run + step);
    const Result empty = folder.run(newest);
    empty.exits(2);
    CHECK(empty.lines() == 1);
}

TEST_CASE("one note says that dropout of another program's model is not applied", "[run]") {
    const TrainingFolder folder;
    folder.train({"-x", "1", "-v", "0", "-o", folder.path("out")});
    const std::string saved = folder.path("out/step_00000001");
    const auto dry_run = [&] { return folder.run(folder.flags({"-e", saved, "--dry-run"})); };
    CHECK_THAT(dry_run().output, !Contains("dropout"));  // the program's own model
    auto config = llmc::parse_json(read_bytes(saved + "/config.json"));
    config["attn_pdrop"] = 0.1;
    config["resid_pdrop"] = 0.25;
    write_bytes(saved + "/config.json", llmc::text_of(config));
    CHECK_THAT(dry_run().output, Contains("remove manifest.json if you changed the model yourself"));
    std::filesystem::remove(saved + "/manifest.json");
    const std::string output = dry_run().exits(0);
    CHECK_THAT(output, Contains("note: dropout is not applied: config.json of --init has attn_pdrop 0.1, "
                                              "resid_pdrop 0.25\n"));
    CHECK(output.find("dropout") == output.rfind("dropout"));
}

TEST_CASE("a run needs no /proc", "[run]") {
    if (device::is_gpu()) skip("NVIDIA's driver needs /proc");
    const TrainingFolder folder;
    if (std::system("unshare -rm true 2>/dev/null") != 0) skip("mount namespaces are not permitted");
    folder.command(Texts{"unshare", "-rm", "bash", "-c", "mount -t tmpfs none /proc && exec \"$0\" \"$@\"",
                         program("train_gpt2")} + folder.flags({"-x", "1", "-o", folder.path("out")})).exits(0);
    CHECK(folder.log("out", "start").at(0)["version"]["build"] == "n/a");
}

TEST_CASE("the log has the time, host and model of a run", "[run]") {
    const TrainingFolder folder;
    const std::string output = folder.train({"-x", "3", "-v", "0", "--log-every", "10", "--log-gpu", "--verbose", "-o",
                                             folder.path("out")});
    const auto start = folder.log("out", "start")[0], end = folder.log("out", "end")[0];
    CHECK(start["log_version"] == 2);
    CHECK_FALSE(start.contains("compression_ms"));
    CHECK(start["time"].get<std::string>() <= end["time"].get<std::string>());
    CHECK(start["host"] == llmc::host_name());
    CHECK(start["version"].contains("commit"));
    CHECK(start["model"] == llmc::parse_json(R"({"name": "custom:l=2,h=2,c=32,t=32", "layers": 2, "heads": 2,
                                                 "channels": 32, "positions": 32, "vocabulary": 257})"));
    const std::int64_t block = 12 * 32 * 32 + 13 * 32, parameters = (257 + 32) * 32 + 2 * block + 2 * 32;
    CHECK(start["parameters"] == parameters);
    CHECK(start["padding_parameters"] == (384 - 257) * 32);
    CHECK_THAT(output, Contains("  " + llmc::with_commas(parameters) + " parameters\n") &&
                       Contains(", and 4,064 of padding\n") && Contains("\nmemory plan\n") && Contains("\noptions: ") &&
                       Contains("compiler "));
    // The terminal has the first and the last step, the log all.
    CHECK(numbers(folder.log("out", "step"), "step") == std::vector<double>{1, 2, 3});
    CHECK(folder.log("out", "step")[0].contains("gpu") == device::is_gpu());
    CHECK_THAT(output, Contains("\nstep 1/3 | ") && Contains("\nstep 3/3 | ") && !Contains("\nstep 2/3"));
    for (const std::string& line : lines_of(output))
        if (line.find(folder.path()) == line.npos) CHECK(line.size() <= 120);  // paths may be long
}

TEST_CASE("the terminal has at most 12 lines before the first step, of at most 80 columns", "[run]") {
    const TrainingFolder folder;
    const auto check_lines = [](const std::string& text) {
        for (const std::string& line : lines_of(text)) {
            CAPTURE(line);
            CHECK(line.size() <= 80);
        }
    };
    const std::string output = folder.train({"-x", "3", "-v", "3", "-d", "128", "--tune=off"});
    const std::string before = output.substr(0, output.find("\nstep 1/3"));
    CHECK(std::count(before.begin(), before.end(), '\n') <= 12);
    CHECK_THAT(before, Contains("\nnoise: sequences in a batch whose ") && Contains("\nmemory: ") &&
                           !Contains("options:") && !Contains("memory plan") && !Contains("dropped"));
    CHECK_THAT(output, Contains("no --output-dir") && !Contains("--beta1"));  // default values are not printed
    check_lines(output);
    const std::string evaluated = folder.train({"--eval-only", "-v", "3", "--tune=off"});
    CHECK_THAT(evaluated, Contains("\nevaluation | validation ") && Contains(" targets\ndone: evaluated in ") &&
                              !Contains("ms/step") && !Contains("noise"));
    check_lines(evaluated);
}

TEST_CASE("--dry-run prints the plan and writes nothing", "[run]") {
    const TrainingFolder folder;
    const std::string output = folder.train({"-x", "10", "-d", "256", "--dry-run", "-o", folder.path("out")});
    for (const char* part : {"memory plan", "gradients, fp32", "total", "available", "parameters", "attention: ",
                             "training data: 1 shard, 6,001 tokens, vocabulary 257", "--max-steps=10", "\ndefaults: ",
                             " --beta1=0.9", " tokens/s, measured here\n", ", 0.427 passes over the text\n"})
        CHECK_THAT(output, Contains(part));
    CHECK(!fs::exists(folder.path("out")));
    for (const bool more : {false, true}) {
        const Texts threads{"--threads", std::to_string(device::usable_threads() + more)};
        CHECK(Pattern("note: [0-9]+ threads on [0-9]+ cores?: ").in(
                  folder.train(threads + Texts{"-x", "10", "--dry-run"})) == more);
    }
    ShardBytes(std::vector<std::uint16_t>(1601, 1), 257, 256).write(folder.path("few.bin"));
    CHECK_THAT(folder.train({"-i", folder.path("train_*.bin:3"), folder.path("few.bin:1"), "-x", "10", "--dry-run"}),
               Contains(" passes over the text\n"));  // until few.bin has been read once: 6,404 tokens
    // Of machines that are not here, with Muon and a cool-down.
    CHECK_THAT(folder.train({"-x", "10", "-d", "1024", "--dry-run", "--ranks", "8", "--memory", "80G", "--optimizer",
                             "muon", "-k", "wsd"}),
               Contains("memory by rank\n  from rank 0: ") && Contains("81559.6 MiB available") &&
                   Contains("micro-batches per step: 2\n") &&
                   Contains("\ncommunication: not started: a plan for 8 ranks\n"));
    CHECK_THAT(folder.run({"-e", "d6", "--dry-run", "--ranks", "8", "--memory", "80G"}).exits(0),
               Contains("note: no --train-data: the plan is for a vocabulary of 50257\n") &&
                   Contains("  from rank 0: ") && Contains("--dtype=bf16"));
    CHECK_THAT(folder.train({"-b", "99", "--dry-run", "--ranks", "8"}),
               Contains("note: the plan leaves out --train-data, which is too small for it: one step needs 792 ") &&
                   Contains(device::is_gpu() ? "memory by rank"
                                             : "the ranks share this machine's memory; --memory plans"));
    const std::string tight =
        folder.refuse({"-e", "gpt3:c12288", "--dry-run", "--memory", "1.5G", "--recompute", "block"});
    CHECK_THAT(tight, Contains("try --dtype bf16, a shorter") && Contains("1529.2 MiB"));
    const Texts to_full_disk = Texts{"bash", "-c", "\"$@\" >/dev/full", "bash", program("train_gpt2")} +
                               folder.flags({"-x", "10", "--dry-run"});
    CHECK_THAT(folder.command(to_full_disk).exits(1),
               Contains("error: cannot write standard output: No space left on device"));
    CHECK_THAT(folder.train({"-e", "gpt3:c12288", "--ignore-memory-plan", "--dry-run", "-o", folder.path("out")}),
               Contains(" MiB: the model cannot be saved; choose another --output-dir\n") &&
               Contains("note: continuing because of --ignore-memory-plan: --micro-batch is 4; "));
    // Without data their number is not known.
    CHECK_THAT(folder.train({"-i", "none_*.bin", "-j", "none.bin", "--dry-run", "-x", "10", "-u", "2"}),
               Contains("note: no shard matches \"none_*.bin\": the plan is for a vocabulary of 50257\n") &&
                   Contains("note: no shard matches \"none.bin\"") && Contains("\ntraining: 10 steps of 64 tokens, ") &&
                   Contains("memory plan") && !Contains(" passes over "));
    CHECK_THAT(folder.train({"-i", "none_*.bin", "-v", "0", "--dry-run", "-u", "2"}),
               Contains("\ntraining: steps of 64 tokens, "));
    CHECK_THAT(folder.refuse({"-i", "none_*.bin"}), Contains("match \"none_*.bin\" is 0; expected at least 1"));
    folder.train({"-x", "1", "-v", "0", "-o", folder.path("model")});
    CHECK_THAT(folder.train({"-e", folder.path("model"), "-i", "none.bin", "-j", "none.bin", "--dry-run"}),
               Contains("the plan is for a vocabulary of 257\n"));
}

TEST_CASE("--overfit-batch memorizes one batch", "[run]") {
    const auto [optimizer, dtype] = GENERATE(table<const char*, const char*>({{"adamw", "fp32"}, {"muon", "bf16"}}));
    CAPTURE(optimizer);
    const TrainingFolder folder;
    folder.train({"-x", "150", "--overfit-batch", "-c", "0", "-v", "0", "--optimizer", optimizer, "--dtype", dtype,
                  "-o", folder.path("out")});
    CHECK(folder.log("out", "step").back()["loss"].get<double>() < 0.05);
}

TEST_CASE("text is tokenized to shards that train", "[run]") {
    const TrainingFolder folder;
    std::string text;
    for (int i = 0; i < 400; ++i)
        text += "chapter " + std::to_string(i % 40) + ": the quick brown fox jumps over the lazy dog\n\n";
    write_bytes(folder.path("text.txt"), text);
    const std::string shards = folder.run(
        {"-o", folder.path("shards"), "--name", "fox", "--document-start", "^$", folder.path("text.txt")},
        "tokenize").exits(0);
    CHECK(folder.run({"-o", folder.path("none"), "--threads", "100000", folder.path("text.txt")}, "tokenize").output ==
          "dev/tokenize: error: --threads is \"100000\"; expected a whole number from 0 to 1024\n");
    for (const auto& [tokenizer, words] :
         {std::pair("bpe:256", "--tokenizer bpe:N is \"256\"; expected a whole number from 258 to 65536"),
          {"bpe:300000", "expected a whole number from 258 to 65536"},
          {"bpe:abc", "--tokenizer bpe:N is \"abc\""},
          {"bpe:50257", "expected another number of ids than GPT-2's 50257; use bpe:50256"},
          {"bqe", "--tokenizer is \"bqe\"; expected auto, bytes, gpt2, bpe:N, or"},
          {"/", "the folder / is without a tokenizer; expected tokenizer.json, or"}})
        CHECK_THAT(folder.run({"-o", folder.path("none"), "--tokenizer", tokenizer, folder.path("text.txt")},
                              "tokenize").exits(2), Contains(words));
    CHECK_THAT(shards, Contains("vocabulary: 257, end of text 256\n"));
    const std::string note = "note:       every file is one document, because no line matches --document-start\n";
    CHECK_THAT(shards, !Contains(note));
    CHECK_THAT(folder.run({"-o", folder.path("one"), "--document-start", "^x", folder.path("text.txt")},
                          "tokenize").output, Contains(note));
    const std::string latin = write_bytes(folder.path("latin.txt"), "caf\xe9\n");
    CHECK_THAT(folder.run({"-o", folder.path("latin"), "--hold-out", "0", latin}, "tokenize").exits(0),
               Contains("note:       1 byte (20 %) not in UTF-8, the first in line 1 of " + latin + ", byte 4, kept; "
                        "iconv -f ENCODING -t UTF-8 converts text in LATIN1, GBK, ...\n"));
    folder.train({"-x", "3", "-i", folder.path("shards/fox_train_*.bin"), "-j", folder.path("shards/fox_val_*.bin")});
}
