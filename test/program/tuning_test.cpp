// tuning_test.cpp - autotuning in whole runs: the first run times and stores algorithms, the next one uses them, and
// errors of the file never stop training

#include "kernels/matmul/matmul.h"
#include "test/support/catch.h"
#include "test/support/processes.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

constexpr const char* kNative = "multiplied natively", *kWidened = "widened to fp32";

void skip_without_choices() {
    if (kernels::Matmul::chooses_by_shape()) return;
    const std::string said = kernels::Matmul().describe(kernels::DType::bf16);
    if (said.find("has no bf16 products") != said.npos) skip("nothing to autotune: " + said);
}

std::vector<std::string> bf16_flags(const TrainingFolder& folder, const std::string& out,
                                    std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"-x", "3", "--dtype", "bf16", "--deterministic", "--tune-file",
                               folder.path("choices.json"), "-o", folder.path(out)});
    return folder.flags(more);
}
nlohmann::json start_of(const TrainingFolder& folder, const std::string& out) { return folder.log(out, "start")[0]; }
std::string weights_of(const TrainingFolder& folder, const std::string& out) {
    return read_bytes(folder.path(out + "/step_00000003/model.safetensors"));
}

}  // namespace

TEST_CASE("the first run stores autotuned algorithms; the next one uses them and is bit-identical", "[run]") {
    skip_without_choices();
    const TrainingFolder folder;
    const std::string file = folder.path("choices.json");
    const auto first = folder.run(bf16_flags(folder, "first"));
    CAPTURE(first.output);
    REQUIRE(first.exit_code == 0);
    CHECK_THAT(first.output, Contains(" timed now, stored in " + file + '\n'));
    const std::string kept = read_bytes(file);
    const auto second = folder.run(bf16_flags(folder, "second"));
    CAPTURE(second.output);
    REQUIRE(second.exit_code == 0);
    CHECK_THAT(second.output, Contains(" from " + file + '\n') && !Contains("timed now"));
    CHECK(read_bytes(file) == kept);
    CHECK(weights_of(folder, "first") == weights_of(folder, "second"));
    const auto before = start_of(folder, "first")["choices"], after = start_of(folder, "second")["choices"];
    CHECK(before["file"] == file);
    CHECK((before["timed"] > 0 && after["timed"] == 0));
    CHECK(before["taken"] == after["taken"]);
    CHECK(!after["taken"].empty());

    const auto again = folder.run(bf16_flags(folder, "again", {"--tune", "again"}));
    CHECK_THAT(again.output, Contains(" timed now, stored in " + file + '\n'));
    CHECK(read_bytes(file) != kept);  // other times
    const auto off = folder.run(bf16_flags(folder, "off", {"--tune", "off"}));
    CHECK_THAT(off.output, Contains("autotuned algorithms: none (--tune off)\n"));
    CHECK(start_of(folder, "off")["choices"]["file"].is_null());
}

TEST_CASE("the stored algorithm determines the bits, whichever is fastest", "[run]") {
    skip_without_choices();
    if (kernels::Matmul::chooses_by_shape()) skip("only oneDNN has two ways to multiply bf16");
    const TrainingFolder folder;
    for (const char* arithmetic : {"native", "widen"})
        REQUIRE(folder.run(bf16_flags(folder, arithmetic, {"--bf16-arithmetic", arithmetic})).exit_code == 0);
    CHECK(!fs::exists(folder.path("choices.json")));  // set by a flag: nothing to time
    REQUIRE(folder.run(bf16_flags(folder, "timed")).exit_code == 0);
    std::string text = read_bytes(folder.path("choices.json"));
    const bool was_native = text.find(kNative) != text.npos;
    const std::string other = was_native ? kWidened : kNative, taken = was_native ? kNative : kWidened;
    text.replace(text.find(taken), taken.size(), other);
    write_bytes(folder.path("choices.json"), text);
    REQUIRE(folder.run(bf16_flags(folder, "forged")).exit_code == 0);
    CHECK_THAT(start_of(folder, "forged")["matmul"].get<std::string>(), Contains("bf16 " + other + " ("));
    CHECK(weights_of(folder, "timed") == weights_of(folder, was_native ? "native" : "widen"));
    CHECK(weights_of(folder, "forged") == weights_of(folder, was_native ? "widen" : "native"));
    CHECK(weights_of(folder, "forged") != weights_of(folder, "timed"));
}

TEST_CASE("if the tuning file cannot be read or written, one note says so and training continues", "[run]") {
    skip_without_choices();
    const TrainingFolder folder;
    const std::string file = folder.path("choices.json");
    const auto notes = [&](const Result& result, const std::string& note) {
        CAPTURE(result.output);
        CHECK(result.exit_code == 0);
        const auto at = result.output.find("note: " + note);
        REQUIRE(at != result.output.npos);
        CHECK(result.output.find("autotuning results", at + 6 + note.size()) == result.output.npos);
        CHECK_THAT(result.output, Contains(" timed now\n"));
        CHECK_THAT(result.output, Contains("done: all steps completed"));
    };
    write_bytes(file, "{\"format\": \"train_gpt2 choices 1\", \"devices\": {\"");
    const std::string damaged = read_bytes(file);
    notes(folder.run(bf16_flags(folder, "damaged")), "autotuning results are neither read from " + file +
                                                         " nor stored there: it is not valid JSON; "
                                                         "remove it, or set another --tune-file\n");
    CHECK(read_bytes(file) == damaged);
    // No folder can be created below a file, not even by root.
    const std::string nowhere = folder.path("train_0.bin/choices.json");
    notes(folder.run(bf16_flags(folder, "nowhere", {"--tune-file", nowhere})),
          "the autotuning results of this run are not stored in " + nowhere + ": cannot create " +
              folder.path("train_0.bin"));
    const auto dry = folder.run(bf16_flags(folder, "dry", {"--dry-run", "--tune-file", folder.path("dry.json")}));
    CHECK(dry.exit_code == 0);
    CHECK(!fs::exists(folder.path("dry.json")));
}

TEST_CASE("all ranks use the algorithms that rank 0 timed, from one file", "[run][ranks][mpi]") {
    skip_without_choices();
    skip_without_mpi();
    const TrainingFolder folder;
    const std::string file = folder.path("choices.json");
    const auto first = folder.run_ranks(2, bf16_flags(folder, "first"));
    CAPTURE(first.output);
    REQUIRE(first.exit_code == 0);
    CHECK_THAT(first.output, Contains(" timed now, stored in " + file + '\n'));
    const std::string kept = read_bytes(file);
    const auto second = folder.run_ranks(2, bf16_flags(folder, "second"));
    CHECK_THAT(second.output, Contains(" from " + file + '\n') && !Contains("timed now"));
    CHECK(read_bytes(file) == kept);
    CHECK(weights_of(folder, "first") == weights_of(folder, "second"));
}
