// generate_test.cpp - dev/generate as a user starts it: output, its timing, and errors
#include "test/support/run_support.h"

using namespace test;

namespace {

// Models of a folder, and dev/generate's standard output and standard error for them.
class Models : public TrainingFolder {
public:
    struct Printed {
        int exit_code;
        std::string out, err;
    };

    // Two checkpoints of a byte model: run/step_00000001 and 2.
    Models() { train({"-x", "2", "-n", "1", "-v", "0", "-o", path("run")}); }
    // Runs a shell command, so that standard input may be a pipe.
    Printed shell(const std::string& before, const std::string& words) const {
        const Result ended = command({"bash", "-c", before + "'" + program("generate") + "' " + words +
                                                    " --threads 1 2>'" + path("err.txt") + "'"});
        return {ended.exit_code, ended.output, read_bytes(path("err.txt"))};
    }
    Printed generate(const std::string& words) const { return shell("", words); }
    std::string run_folder() const { return "-e '" + path("run") + "' "; }
    std::string checkpoint(int step) const { return path("run/step_0000000" + std::to_string(step)); }
};

}  // namespace

TEST_CASE("generate prints the prompt and the text that training samples, from the newest checkpoint", "[run]") {
    const Models models;
    // A high temperature, so that most bytes are invalid UTF-8, and buffered bytes appear at the end.
    const std::string sampling = " --temperature 3 --top-k 0 --top-p 0.99 --seed 4";
    models.train({"-e", models.checkpoint(2), "--eval-only", "-s", "1", "-g", "12", "--prompt", "ab", "--samples", "3",
                  "-o", models.path("samples"), "--temperature", "3", "--top-k", "0", "--top-p", "0.99", "--seed",
                  "4"});
    Texts want;
    for (const auto& event : models.log("samples", "sample")) want.push_back(event["text"]);
    REQUIRE(want.size() == 3);
    CHECK_THAT(want[0] + want[1] + want[2], Contains("\\x"));

    const auto one = models.generate(models.run_folder() + "--prompt ab -n 12" + sampling);
    CAPTURE(one.err);
    CHECK(one.exit_code == 0);
    CHECK(one.out == want[0] + "\n");
    CHECK_THAT(one.err, Contains("step_00000002: 2 layers") && Contains("12 tokens in ") &&
                            Contains("the prompt's 3 tokens") && Contains("tokens/s"));
    const auto three = models.generate(models.run_folder() + "--samples 3 --prompt ab -n 12" + sampling);
    CHECK(three.out == "--- sample 1 of 3 ---\n" + want[0] + "\n--- sample 2 of 3 ---\n" + want[1] +
                           "\n--- sample 3 of 3 ---\n" + want[2] + "\n");
    // A checkpoint by its own name; another seed, bf16.
    const auto first = models.generate("-e '" + models.checkpoint(1) + "' --prompt ab -n 12" + sampling);
    CHECK(first.out != one.out);
    CHECK(models.generate(models.run_folder() + "--prompt ab -n 12 --seed 5").out != one.out);
    CHECK(models.generate(models.run_folder() + "--prompt ab -n 3 --dtype bf16").exit_code == 0);
    // Beyond the model's positions.
    const auto longer = models.generate(models.run_folder() + "--prompt abcdefg -n 60 --temperature 0");
    CHECK_THAT(longer.err, Contains("60 tokens in"));

    // A checkpoint that cannot be opened is skipped with a note.
    fs::resize_file(models.checkpoint(2) + "/model.safetensors", 1000);
    const auto older = models.generate(models.run_folder() + "--prompt ab -n 12" + sampling);
    CHECK(older.out == first.out);
    CHECK_THAT(older.err,
               Contains("note: skips") && Contains("step_00000002: ") && Contains("step_00000001: 2 layers"));
}

TEST_CASE("text is printed as it is generated, and Ctrl-C ends it cleanly", "[run]") {
    const Models models;
    Process process({program("generate"), "-e", models.path("run"), "--prompt", "ab", "-n", "1000000", "--top-k", "1",
                     "--threads", "1"}, models.path("output.txt"));
    std::size_t grown = 0;
    for (std::size_t seen = 0, i = 0; i < 6000 && grown < 3 && !process.ended(); ++i) {
        const std::size_t size = process.output().size();
        grown += size > seen && seen > 0;
        seen = size;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    CHECK(grown == 3);
    process.signal(SIGINT);
    CHECK(process.exit_code(std::chrono::minutes(1)) == 0);
    CHECK_THAT(process.output(), Contains("tokens/s") && EndsWith("\n"));
}

TEST_CASE("without --prompt every line of standard input is a prompt", "[run]") {
    const Models models;
    const std::string sampling = "-n 9 --seed 6";
    const auto asked = models.shell("printf 'ab\\n\\nab' | ", models.run_folder() + sampling);
    CAPTURE(asked.err);
    CHECK(asked.exit_code == 0);
    CHECK(std::count(asked.err.begin(), asked.err.end(), '>') == 4);
    CHECK_THAT(asked.err, Contains("Ctrl-D exits"));
    // Each has its own seed; the prompt itself is not printed again.
    const auto one = models.generate(models.run_folder() + "--prompt ab " + sampling).out;
    const auto start = models.generate(models.run_folder() + "--prompt '' -n 9 --seed 7").out;
    const auto again = models.generate(models.run_folder() + "--prompt ab -n 9 --seed 8").out;
    CHECK(asked.out == one.substr(2) + start + again.substr(2));
    // Without the end of text that starts a document, the prompt is its tokens alone.
    const auto bare = models.generate(models.run_folder() + "--prompt ab --no-bos " + sampling);
    CHECK_THAT(bare.err, Contains("the prompt's 2 tokens"));
    CHECK(bare.out == models.generate(models.run_folder() + "--prompt-ids 97,98 " + sampling).out);
    CHECK(models.generate(models.run_folder() + "--prompt ab --no-bos=off " + sampling).out == one);
    CHECK_THAT(models.generate(models.run_folder() + "--prompt '' --no-bos").err, Contains("the prompt is empty"));
    // Ctrl-C while it waits for a line.
    Process waits({"bash", "-c", "exec '" + program("generate") + "' -e '" + models.path("run") + "' < <(sleep 20)"},
                  models.path("output.txt"));
    CHECK(waits.prints("> "));
    waits.signal(SIGINT);
    CHECK(waits.exit_code(std::chrono::seconds(10)) == 0);
}

TEST_CASE("a model without a tokenizer generates ids", "[run]") {
    const TrainingFolder folder;
    const std::string out = folder.path("ids");
    ShardBytes(std::vector<std::uint16_t>(200, 7), 300, 299).write(folder.path("ids.bin"));
    folder.run({"-i", folder.path("ids.bin"), "-e", "custom:l=1,h=1,c=16,t=16", "-b", "1", "-t", "8", "-x", "1", "-v",
                "0", "--threads", "1", "-o", out}).exits(0);
    const auto generate = [&](const std::string& words) {
        return folder.command({"bash", "-c", "'" + program("generate") + "' -e '" + out + "' --threads 1 " + words +
                                             " 2>&1 | sed '/tokens in/d'"}).output;
    };
    const std::string ids = generate("--prompt-ids '5, 299 17' -n 4 --seed 1");
    std::istringstream words(ids.substr(ids.find('\n') + 1));
    std::vector<int> all;
    for (int id; words >> id;) all.push_back(id);
    CAPTURE(ids);
    REQUIRE(all.size() == 7);
    CHECK(std::vector<int>(all.begin(), all.begin() + 3) == std::vector<int>{5, 299, 17});
    CHECK(*std::max_element(all.begin(), all.end()) < 300);
    CHECK_THAT(generate("--prompt ab"), Contains("the vocabulary to encode text with is 300 ids"));
    CHECK_THAT(generate("--prompt-ids '1 300'"),
               Contains("--prompt-ids is \"1 300\" with \"300\"; expected token ids from 0 to 299"));
    CHECK_THAT(generate("--prompt-ids '1 x'"), Contains("--prompt-ids is \"1 x\""));
    CHECK_THAT(generate("--prompt-ids ''"), Contains("at least one token id"));
    for (const std::string list : {"1, ,2", "1,"})
        CHECK_THAT(generate("--prompt-ids '" + list + "'"),
                   Contains("--prompt-ids is \"" + list + "\"; expected a token id before and after every comma"));
    // An interactive line that is not a list of ids is refused, and the next one read.
    const std::string asked = generate("-n 2 < <(printf '1 2\\nab\\n3\\n')");
    CAPTURE(asked);
    CHECK_THAT(asked, Contains("the prompt is \"ab\"; expected token ids"));
    CHECK(std::count(asked.begin(), asked.end(), '>') == 4);
}

TEST_CASE("generate refuses invalid arguments with one line that names the flag", "[run]") {
    const Models models;
    const auto refusal = [&](const std::string& words) {
        const auto printed = models.generate(words);
        CAPTURE(words, printed.out, printed.err);
        CHECK(printed.exit_code == 2);
        CHECK(printed.out == "");
        CHECK(lines_of(printed.err).size() <= 2);  // the model's own line may come first
        return printed.err;
    };
    const std::string run = models.run_folder() + "--prompt ab ";
    CHECK_THAT(refusal("--prompt ab"), Contains("--checkpoint is not given"));
    CHECK_THAT(refusal("-e '" + models.path("none") + "' --prompt ab"),
               Contains("none\" is no folder, run or model; expected the folder of a run, a checkpoint or"));
    CHECK_THAT(refusal("-e '" + models.path("train_0.bin") + "' --prompt ab"), Contains("token shard"));
    for (const auto& [words, said] :
         {std::pair("--prompt-ids 1", "--prompt or --prompt-ids, not both"),
          {"-n 0", "--tokens is \"0\"; expected a whole number from 1 to"}, {"--tokens 5x", "--tokens is \"5x\""},
          {"--samples 0", "--samples is \"0\""},
          {"--temperature -1", "--temperature is \"-1\"; expected a number from 0 to 100"},
          {"--temperature nan", "--temperature"},
          {"--top-p 1.5", "--top-p is \"1.5\""}, {"--top-k -1", "--top-k is \"-1\""},
          {"--seed x", "--seed is \"x\""}, {"--dtype fp16", "--dtype is \"fp16\""},
          {"--seed -1", "from 0 to 9223372036854775807"},
          {"--top-p 0", "--top-p is \"0\"; expected a number from 1e-06 to 1"},
          {"--max_new_tokens 3", "the flag \"--max_new_tokens\" is unknown; expected --tokens"},
          {"--num_samples 3", "the flag \"--num_samples\" is unknown; expected --samples"},
          {"--model x", "the flag \"--model\" is unknown; expected --checkpoint"}})
        CHECK_THAT(refusal(run + words), Contains(said));
    const auto help = models.generate("--help");
    CHECK(help.exit_code == 0);
    for (const char* said : {"--prompt \"In the beginning\"", "Sampling options", "end-of-text", "--no-bos"})
        CHECK_THAT(help.out, Contains(said));
    // It ends when its reader is gone.
    const auto closed = models.shell("set -o pipefail; ",
                                     models.run_folder() + "--prompt ab -n 100000 --top-k 1 | true");
    CHECK(closed.exit_code != 0);
}
