// tokenizer_run_test.cpp - tokenizers in whole runs: saved with the model, used for samples, and shards that do not
// match the model
#include <sys/stat.h>

#include "llmc/text/tokenizer_files.h"
#include "test/support/run_support.h"

using namespace test;

TEST_CASE("a model that adds tokens to GPT-2's keeps its tokenizer files and its end of text", "[run]") {
    const TrainingFolder folder;
    for (const char* const shard : {"train_0.bin", "val_0.bin"})
        ShardBytes(std::vector<std::uint16_t>(3000, 995)).write(folder.path(shard));
    const std::string first = folder.path("out/step_00000002");
    folder.train({"-x", "2", "-v", "0", "-o", folder.path("out"), "-e", "custom:l=1,h=1,c=16,t=32,v=50258",
                  "--allow-larger-vocabulary"});
    auto config = llmc::parse_json(read_bytes(fs::path(first) / "config.json"));
    config["eos_token_id"] = 50257;
    write_bytes(fs::path(first) / "config.json", llmc::text_of(config));
    fs::remove(fs::path(first) / "manifest.json");
    const Texts again{"-x", "2", "-v", "0", "-o", folder.path("chat"), "-e", first, "--allow-larger-vocabulary"};
    for (const auto& [name, contents] : llmc::tokenizer_files(*llmc::tokenizer_for(llmc::kByteVocabulary), 32))
        fs::remove(fs::path(first) / name);
    CHECK_THAT(folder.refuse(again), Contains("/tokenizer.json is missing; expected the tokenizer with the added token "
                                              "50257, the eos_token_id of config.json"));
    const std::map<std::string, std::string> own{{"tokenizer.json", "{\"added\": \"<|chat|>\"}"},
                                                 {"added_tokens.json", "{\"<|chat|>\": 50257}"}};
    for (const auto& [name, contents] : own) write_bytes(fs::path(first) / name, contents);
    folder.train(again);
    const fs::path saved = folder.path("chat/step_00000002");
    for (const auto& [name, contents] : own) CHECK(read_bytes(saved / name) == contents);
    CHECK(llmc::parse_json(read_bytes(saved / "config.json"))["eos_token_id"] == 50257);
}

TEST_CASE("an interrupted tokenizer leaves no files, also while it waits for input", "[run]") {
    const TrainingFolder folder;
    const int number = GENERATE(SIGINT, SIGTERM);
    const bool waits = GENERATE(true, false);
    CAPTURE(number, waits);
    const std::string pipe = folder.path("text"), shards = folder.path("shards"), text(1 << 16, 'a');
    REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    Process tokenizer = folder.start({"-o", shards, "--hold-out", "0", "--tokenizer", "bytes", "--shard-tokens",
                                      "1000000", pipe}, "tokenize");
    const int end = open(pipe.c_str(), O_RDWR | O_NONBLOCK);  // also for reading, so that open() does not block
    REQUIRE(end >= 0);
    const auto write_more = [&] { return write(end, text.data(), text.size()) > 0; };
    REQUIRE(comes_true([&] { return write_more(), fs::exists(shards) && !fs::is_empty(shards); },
                       std::chrono::minutes(1)));
    if (waits) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    tokenizer.signal(number);
    tokenizer.signal(number);  // as if sent to a process group and its members
    CHECK(comes_true([&] { return (waits || write_more(), tokenizer.ended()); }));
    close(end);
    CHECK(tokenizer.exit_code() == -number);
    CHECK_FALSE(fs::exists(shards));
}

TEST_CASE("GPT-2 shards have prompts and samples in text if the merges are available", "[run]") {
    const TrainingFolder folder;
    std::vector<std::uint16_t> ids(3000, 995);
    for (std::size_t i = 0; i < ids.size(); i += 10) ids[i] = 50256;
    ShardBytes(ids).write(folder.path("train_0.bin"));
    ShardBytes(ids).write(folder.path("val_0.bin"));
    const Texts sampling{"-x", "2", "-v", "0", "-o", folder.path("out"), "-e", "custom:l=1,h=1,c=16,t=32", "-s", "2",
                         "-g", "4", "--prompt", "Hello"};
    if (llmc::find_gpt2_merges().empty())
        CHECK_THAT(folder.refuse(sampling), Contains("scripts/get_gpt2_tokenizer.sh"));
    folder.train(sampling + Texts{"--merges", gpt2_merges().string()});
    const auto samples = folder.log("out", "sample");
    REQUIRE(samples.size() == 1);
    CHECK(samples[0]["text"].get<std::string>().starts_with("Hello"));
    const auto saved = llmc::load_tokenizer(folder.path("out/step_00000002"), llmc::kGpt2Vocabulary);
    CHECK(saved->encode("Hello world") == std::vector<int>{15496, 995});
}

TEST_CASE("a BPE trained on a text is used for samples, checkpoints, generated text and other texts", "[run]") {
    const TrainingFolder folder;
    const auto shards = [&](const std::string& name, const std::string& tokenizer, const std::string& words) {
        std::string text;
        for (int i = 0; i < 400; ++i) text += "chapter " + std::to_string(i % 40) + ": " + words + "\n\n";
        write_bytes(folder.path("text.txt"), text);
        return folder.command({"bash", "-c", "exec \"$@\" - <'" + folder.path("text.txt") + "'", "bash",
                               program("tokenize"), "-o", folder.path(name), "--document-start", "^$", "--tokenizer",
                               tokenizer}).exits(0);
    };
    const auto data_of = [&](const std::string& train, const std::string& val) {
        return Texts{"-i", folder.path(train + "/text_train_*.bin"), "-j", folder.path(val + "/text_val_*.bin")};
    };
    CHECK_THAT(shards("fox", "bpe:300", "the quick brown fox jumps over the lazy dog"),
               Contains("vocabulary: 300, end of text 299\ntokenizer:  " + folder.path("fox/tokenizer.json") +
                        ", trained on all "));
    folder.train(data_of("fox", "fox") + Texts{"-x", "5", "-v", "5", "-s", "5", "-g", "4", "--prompt", "the fox", "-o",
                                               folder.path("out")});
    CHECK(folder.log("out", "sample").back()["text"].get<std::string>().starts_with("the fox"));
    CHECK(folder.log("out", "val").back()["bits_per_byte"].is_number());
    const std::string saved = folder.step("out", 5);
    CHECK(llmc::read_tokenizer(saved)->encode(" fox") == llmc::read_tokenizer(folder.path("fox"))->encode(" fox"));
    const Result generated = folder.run({"-e", saved, "--prompt", "the fox", "-n", "4", "--threads", "1"}, "generate");
    CHECK_THAT(generated.exits(0), Contains("\nthe fox"));

    shards("sea", "bpe:300", "she sells sea shells by the sea shore, and many other things");
    CHECK_THAT(folder.refuse(data_of("fox", "sea")), Contains("300 ids, end of text 299, merges "));
    CHECK_THAT(folder.refuse(data_of("sea", "sea") + Texts{"-e", saved}),
               Contains("the tokenizer of " + saved + " is 300 ids") &&
                   Contains("make shards with dev/tokenize --tokenizer " + saved));
    shards("same", saved, "she sells sea shells by the sea shore, and many other things");
    folder.train(data_of("same", "fox") + Texts{"-e", saved, "-x", "1"});
    CHECK_THAT(folder.run({"-o", folder.path("fox"), "--name", "more", folder.path("text.txt")}, "tokenize").exits(0),
               Contains("vocabulary: 300, end of text 299\ntokenizer:  " + folder.path("fox/tokenizer.json") + '\n'));
    fs::remove(folder.path("fox/tokenizer.json"));
    CHECK_THAT(folder.train(data_of("fox", "fox") + Texts{"-x", "1", "-s", "1", "-o", folder.path("ids")}),
               Contains("samples are ids, and checkpoints have no tokenizer: the folder of the shards has no"));
}
