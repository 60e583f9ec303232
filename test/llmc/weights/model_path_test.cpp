// model_path_test.cpp - names of the hub, and checkpoints not written to their end, are told from paths
#include "llmc/weights/model_path.h"

#include <catch2/catch.hpp>

#include "kernels/device/error.h"
#include "llmc/weights/checkpoint.h"
#include "test/support/scratch_folder.h"

using namespace llmc;
using namespace test;

namespace {

std::string path_fault(const std::string& path) {
    try {
        require_model_path(path);
    } catch (const Error& error) {
        CHECK(error.blame() == Blame::input);
        return error.what();
    }
    return "";
}

}  // namespace

TEST_CASE("a name of Hugging Face's hub is told how to become a folder", "[model_path]") {
    CHECK(path_fault("gpt2") ==
          "\"gpt2\" is a model of Hugging Face's hub; expected a model on this machine; download it: hf download "
          "openai-community/gpt2 config.json model.safetensors merges.txt --local-dir gpt2, then give gpt2; or give "
          "d12, its size with random weights");
    CHECK_THAT(path_fault("openai-community/gpt2-xl"), Catch::Contains("hf download openai-community/gpt2-xl ") &&
                                                          Catch::Contains("--local-dir gpt2-xl, then give gpt2-xl; ") &&
                                                          Catch::Contains("or give d48, "));
    CHECK_THAT(path_fault("somebody/My_gpt2.v1"),
               Catch::StartsWith("\"somebody/My_gpt2.v1\" is missing here; expected a model on this machine; if it is "
                                 "one of Hugging Face's hub: hf download somebody/My_gpt2.v1 ") &&
                   Catch::EndsWith("then give My_gpt2.v1"));
    CHECK_THROWS_WITH(Checkpoint("openai-community/gpt2"), Catch::Contains("hf download"));
}

TEST_CASE("paths and names of sizes are no names of the hub", "[model_path]") {
    const ScratchFolder scratch;
    const std::string folder = scratch.path().string();
    for (const std::string& path :
         std::vector<std::string>{folder, folder + "/gpt2", "test/gpt2", "test/llmc", "d12", "custom:l=1,h=1,c=8",
                                  "a/b/c", "./gpt2", "nowhere/model.bin", "/gpt2", "nowhere/", ""}) {
        CAPTURE(path);
        CHECK(path_fault(path).empty());
    }
}

TEST_CASE("a checkpoint that was not written to its end is named, wherever in it the path leads", "[model_path]") {
    const ScratchFolder scratch;
    const auto partial = scratch.path() / ".step_00000010.partial", whole = scratch.path() / "step_00000010";
    for (const auto& folder : {partial, whole}) {
        std::filesystem::create_directory(folder);
        write_bytes(folder / "model.safetensors", "");
    }
    for (const std::string end : {"", "/", "/model.safetensors"}) {
        CAPTURE(end);
        CHECK_THAT(path_fault(partial.string() + end),
                   Catch::Contains("is a checkpoint that was not written to its end; expected a whole one; name a "
                                   "step_XXXXXXXX beside it; its run goes on from there by --resume auto"));
        CHECK(path_fault(whole.string() + end).empty());
    }
    CHECK(is_partial_checkpoint(partial));
    CHECK(!is_partial_checkpoint(whole));
}
