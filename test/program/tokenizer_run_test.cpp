// tokenizer_run_test.cpp - tokenizers in whole runs: saved with the model, used for samples, and shards that do not
// match the model
#include <sys/stat.h>

#include <set>
#include <thread>

#include "llmc/data/bpe_merges.h"
#include "llmc/data/tokenizer_files.h"
#include "llmc/weights/manifest.h"
#include "test/support/gpt2_merges.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

std::vector<std::string> without_init(const TrainingFolder& folder, std::vector<std::string> more) {
    auto flags = folder.flags({"-x", "2", "-v", "0", "-o", folder.path("out")});
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
}

}  // namespace

TEST_CASE("every checkpoint has its tokenizer, which the manifest lists", "[run]") {
    const TrainingFolder folder;
    const auto result = folder.run(without_init(folder, {}));
    CAPTURE(result.output);
    REQUIRE(result.exit_code == 0);
    const fs::path saved = folder.path("out/step_00000002");
    const auto files = llmc::tokenizer_files(*llmc::tokenizer_for(llmc::kByteVocabulary), 32);
    const auto manifest = llmc::parse_json(read_bytes(saved / "manifest.json"))["files"];
    for (const auto& [name, contents] : files) {
        CHECK(read_bytes(saved / name) == contents);
        CHECK(manifest.contains(name));
    }
    CHECK_NOTHROW(llmc::check_manifest(saved));
}

TEST_CASE("a model with a larger vocabulary than its shards trains if requested", "[run]") {
    const TrainingFolder folder;
    const auto result = folder.run(
        without_init(folder, {"-e", "custom:l=2,h=2,c=32,t=32,v=400", "-s", "1", "-g", "64", "--prompt", "ab",
                              "--top-k", "0", "--temperature", "50", "--allow-larger-vocabulary"}));
    CAPTURE(result.output);
    REQUIRE(result.exit_code == 0);
    // At this temperature a third of the tokens sampled from 400 ids would be beyond the 257 of the tokenizer.
    CHECK(folder.log("out", "sample").size() == 2);
    const auto config = llmc::parse_json(read_bytes(fs::path(folder.path("out/step_00000002")) / "config.json"));
    CHECK(config["vocab_size"] == 400);
    CHECK(config["eos_token_id"] == 256);
}

TEST_CASE("an interrupted tokenizer leaves no files, also while it waits for input", "[run]") {
    const TrainingFolder folder;
    const int number = GENERATE(SIGINT, SIGTERM);
    const bool waits = GENERATE(true, false);
    CAPTURE(number, waits);
    const std::string pipe = folder.path("pipe"), shards = folder.path("shards");
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    Process tokenize = folder.start({"-o", shards, "--hold-out", "0", "--shard-tokens", "1000000", pipe}, "tokenize");
    const int end = open(pipe.c_str(), O_RDWR | O_NONBLOCK);  // also for reading, so that open() does not block
    REQUIRE(end >= 0);
    const std::string text(1 << 16, 'a');
    const auto write_more = [&] { return write(end, text.data(), text.size()) > 0; };
    // Until it has started a shard.
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    const auto begun = [&] { return fs::exists(shards) && !fs::is_empty(shards); };
    while (!begun() && std::chrono::steady_clock::now() < until) write_more();
    REQUIRE(begun());
    if (waits) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    tokenize.signal(number);
    tokenize.signal(number);  // as if sent to a process group and its members
    while (!waits && !tokenize.ended() && std::chrono::steady_clock::now() < until) write_more();
    CHECK(tokenize.exit_code(std::chrono::seconds(30)) == -number);
    close(end);
    CHECK_FALSE(fs::exists(shards));
}

TEST_CASE("files of a killed tokenizer are removed when the next one writes shards of that name", "[run]") {
    const TrainingFolder folder;
    const std::string pipe = folder.path("text"), shards = folder.path("shards"), text = folder.path("a.txt");
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    Process killed = folder.start({"-o", shards, "--hold-out", "0", pipe}, "tokenize");
    const int end = open(pipe.c_str(), O_RDWR | O_NONBLOCK);
    REQUIRE(end >= 0);
    const std::string letters(1 << 16, 'a');
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    const auto begun = [&] { return fs::exists(shards) && !fs::is_empty(shards); };
    while (!begun() && std::chrono::steady_clock::now() < until)
        if (write(end, letters.data(), letters.size()) < 0) std::this_thread::yield();
    REQUIRE(begun());
    std::string lines;
    for (int i = 10; i < 60; ++i) lines += "line " + std::to_string(i) + "\n";
    write_bytes(text, lines);
    killed.signal(SIGKILL);
    CHECK(killed.exit_code() == -SIGKILL);
    close(end);
    REQUIRE(begun());
    const auto result = folder.run({"-o", shards, text}, "tokenize");
    CAPTURE(result.output);
    CHECK(result.exit_code == 0);
    CHECK_THAT(result.output, test::Contains("note:       1 file of killed runs found and removed\n"));
    CHECK_THAT(result.output, test::Contains("validation: 1 document, 32 bytes, 33 tokens, "));
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(shards)) names.insert(entry.path().filename());
    CHECK(names == std::set<std::string>{"text_train_000000.bin", "text_val_000000.bin"});
}

TEST_CASE("GPT-2 shards have prompts and samples in text if the merges are available", "[run]") {
    const TrainingFolder folder;
    std::vector<std::uint16_t> ids(3000, 995);
    for (std::size_t i = 0; i < ids.size(); i += 10) ids[i] = 50256;
    ShardBytes(ids).write(folder.path("train_0.bin"));
    ShardBytes(ids).write(folder.path("val_0.bin"));
    const std::vector<std::string> sampling = {"-e",   "custom:l=1,h=1,c=16,t=32", "-s", "2", "-g", "4", "--prompt",
                                               "Hello"};
    if (llmc::find_gpt2_merges().empty()) {
        const auto result = folder.run(without_init(folder, sampling));
        CHECK(result.exit_code == 2);
        CHECK_THAT(result.output, Contains("scripts/get_gpt2_tokenizer.sh"));
    }
    auto flags = sampling;
    flags.insert(flags.end(), {"--merges", gpt2_merges().string()});
    const auto result = folder.run(without_init(folder, flags));
    CAPTURE(result.output);
    REQUIRE(result.exit_code == 0);
    const auto samples = folder.log("out", "sample");
    REQUIRE(samples.size() == 1);
    CHECK(samples[0]["text"].get<std::string>().starts_with("Hello"));
    const auto saved = llmc::load_tokenizer(folder.path("out/step_00000002"), llmc::kGpt2Vocabulary);
    CHECK(saved->encode("Hello world") == std::vector<int>{15496, 995});
}
