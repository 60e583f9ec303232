// model_path_test.cpp - names of Hugging Face's hub and incomplete checkpoints are recognized
#include "llmc/weights/model_path.h"

#include "llmc/weights/saved_model.h"
#include "llmc/weights/step_folder.h"
#include "test/support/scratch_folder.h"

using namespace llmc;
using namespace test;

namespace {

std::string path_fault(const std::string& path) {
    return error_of([&] { require_model_path(path); }, Blame::input);
}

}  // namespace

TEST_CASE("for a name of Hugging Face's hub the error says how to download it", "[model_path]") {
    CHECK(path_fault("gpt2") ==
          "\"gpt2\" is a model on Hugging Face's hub; expected a model on this machine; download it: hf download "
          "openai-community/gpt2 config.json model.safetensors merges.txt --local-dir gpt2, then pass gpt2; or pass "
          "d12, its size with random weights");
    CHECK_THAT(path_fault("openai-community/gpt2-xl"), test::Contains("hf download openai-community/gpt2-xl ") &&
                                                          test::Contains("--local-dir gpt2-xl, then pass gpt2-xl; ") &&
                                                          test::Contains("or pass d48, "));
    CHECK_THAT(path_fault("somebody/My_gpt2.v1"),
               test::StartsWith("\"somebody/My_gpt2.v1\" is no folder, run or model; expected the folder of a run, a "
                                 "checkpoint or") &&
                   test::Contains("if it is on Hugging Face's hub: hf download somebody/My_gpt2.v1 ") &&
                   test::EndsWith("then pass My_gpt2.v1"));
    CHECK_THROWS_WITH(SavedModel("openai-community/gpt2"), test::Contains("hf download"));
}

TEST_CASE("paths and names of sizes are not taken for names of the hub", "[model_path]") {
    const ScratchFolder scratch;
    const std::string folder = scratch.path().string();
    for (const std::string& path :
         std::vector<std::string>{folder, folder + "/gpt2", "test/gpt2", "test/llmc", "d12", "custom:l=1,h=1,c=8",
                                  "a/b/c", "./gpt2", "nowhere/model.bin", "/gpt2", "nowhere/", ""}) {
        CAPTURE(path);
        CHECK(path_fault(path) == "accepted");
    }
}

TEST_CASE("the error for a path that does not exist names the forms of a model", "[model_path]") {
    for (const std::string path : {"nope", "runs/nope", "./nope", "nowhere/model.bin", "a/b/c", "d12"}) {
        CAPTURE(path);
        CHECK_THROWS_WITH(
            newest_model(path),
            test::StartsWith('"' + path + "\" is no folder, run or model; expected the folder of a run, a checkpoint "
                             "or a transformers model, a .safetensors file or llm.c's .bin file; check the ") &&
                test::Contains("-e of train_gpt2 also takes a size, such as d12 or custom:l=4,h=4,c=128"));
    }
}

TEST_CASE("an incomplete checkpoint, or a path in it, is refused", "[model_path]") {
    const ScratchFolder scratch;
    const auto partial = scratch / ".step_00000010.partial", whole = scratch / "step_00000010";
    for (const auto& folder : {partial, whole}) {
        std::filesystem::create_directory(folder);
        write_bytes(folder / "model.safetensors", "");
    }
    for (const std::string end : {"", "/", "/model.safetensors"}) {
        CAPTURE(end);
        CHECK_THAT(path_fault(partial.string() + end),
                   test::Contains("is an incomplete checkpoint; expected a complete one; pass a step_XXXXXXXX beside "
                                   "it; --resume auto resumes its run from the newest one"));
        CHECK(path_fault(whole.string() + end) == "accepted");
    }
    CHECK(is_partial_checkpoint(partial));
    CHECK(!is_partial_checkpoint(whole));
}
