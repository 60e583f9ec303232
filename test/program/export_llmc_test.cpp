// export_llmc_test.cpp - export to llm.c's model files: contents, errors, and files that are not overwritten
#include "test/support/run_support.h"

using namespace test;

TEST_CASE("a run from an exported llm.c .bin is bit-identical to one from the folder", "[run]") {
    const TrainingFolder folder;
    const auto run = [&](const char* out, const Texts& more) {
        folder.train(more + Texts{"-x", "1", "-v", "0", "--deterministic", "-o", folder.path(out)});
        return folder.model(out, 1);
    };
    const auto exports = [&](Texts arguments, int exit_code) {
        const Result result = folder.run(arguments, "export_llmc");
        CHECK(result.lines() == 1);
        return result.exits(exit_code);
    };
    const auto saved = run("first", {"-l", "1e-2"});
    const std::string model = folder.path("first/step_00000001"), bin = folder.path("new/model_00000001.bin");
    CHECK_THAT(exports({"--checkpoint", model, "--output", bin}, 0),
               Contains(bin + ": 2 layers, 2 heads, 32 channels, 32 positions, vocabulary 257, padded to 384, fp32, "));
    CHECK(run("again", {"-e", model}) == run("from_bin", {"-e", bin}));
    const std::string newest = folder.path("newest.bin");  // of a run
    CHECK_THAT(exports({"-e", folder.path("first"), "--output", newest}, 0), EndsWith(" bytes, from " + model + "\n"));
    CHECK(read_bytes(newest) == read_bytes(bin));
    // An existing file is replaced only with --overwrite.
    const std::string wide = folder.path("wide.bin");
    exports({"-e", bin, "-o", wide, "--dtype", "bf16"}, 0);
    const auto before = read_bytes(wide);
    CHECK_THAT(exports({"--checkpoint", bin, "-o", wide}, 2), Contains("wide.bin, which already exists") &&
                                                                  Contains("--overwrite"));
    CHECK_THAT(exports({"--checkpoint", bin, "-o", wide, "--overwrite", "no"}, 2), Contains("already exists"));
    CHECK(read_bytes(wide) == before);
    CHECK_THAT(exports({"--checkpoint", bin, "-o", wide, "--overwrite=yes"}, 0), Contains("(replaced)"));
    CHECK(read_bytes(wide) == read_bytes(bin));
    fs::create_symlink(wide, folder.path("link.bin"));
    CHECK_THAT(exports({"--checkpoint", bin, "-o", folder.path("link.bin"), "--overwrite"}, 2),
               Contains("link.bin, a device, pipe or link; expected a file"));

    // An invalid checkpoint, unknown arguments, an impossible folder.
    const std::string shard = folder.path("train_0.bin"), out = folder.path("out.bin");
    CHECK_THAT(exports({"--checkpoint", shard, "-o", out}, 2), Contains("token shard"));
    CHECK_THAT(exports({"--checkpoint", bin, "-o", out, "--dtype", "fp16"}, 2), Contains("--dtype is \"fp16\""));
    CHECK_THAT(exports({"--checkpoint", bin, "-o", folder.path("new")}, 2), Contains("the name of a file"));
    CHECK_THAT(exports({"--checkpoint", bin, "-o", shard + "/out.bin"}, 1), Contains("train_0.bin"));
    CHECK(!fs::exists(out));
    for (const std::string& name : names_in(folder.path())) CHECK(!name.starts_with('.'));  // no partial file
}
