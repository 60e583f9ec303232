// tuning_test.cpp - autotuning in whole runs: the first run times and stores algorithms, the next one uses them
#include "kernels/matmul/matmul.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

constexpr const char* kNative = "multiplied natively", *kWidened = "widened to fp32";

void skip_without_choices() {
    if (kernels::Matmul::chooses_by_shape()) return;
    const std::string said = kernels::Matmul().describe(kernels::DType::bf16);
    if (said.find("has no bf16 products") != said.npos) skip("nothing to autotune: " + said);
}

std::string train_bf16(const TrainingFolder& folder, const std::string& out, const Texts& more = {}, int ranks = 1) {
    return folder.run_on(ranks, folder.flags(Texts{"-x", "3", "--dtype", "bf16", "--deterministic", "--tune-file",
                                                   folder.path("choices.json"), "-o", folder.path(out)} + more))
        .exits(0);
}
nlohmann::json start_of(const TrainingFolder& folder, const std::string& out) { return folder.log(out, "start")[0]; }

}  // namespace

TEST_CASE("the first run stores rank 0's autotuned algorithms; the next one uses them and is bit-identical",
          "[run][ranks][mpi]") {
    skip_without_choices();
    const int ranks = GENERATE(1, 2);
    const TrainingFolder folder;
    const std::string file = folder.path("choices.json");
    const auto first = train_bf16(folder, "first", {}, ranks);
    CHECK_THAT(first, Contains(" timed now, stored in " + file + '\n'));
    const std::string kept = read_bytes(file);
    const auto second = train_bf16(folder, "second", {}, ranks);
    CHECK_THAT(second, Contains(" from " + file + '\n') && !Contains("timed now"));
    CHECK(read_bytes(file) == kept);
    CHECK(folder.model("first", 3) == folder.model("second", 3));
    const auto before = start_of(folder, "first")["choices"], after = start_of(folder, "second")["choices"];
    CHECK(before["file"] == file);
    CHECK((before["timed"] > 0 && after["timed"] == 0));
    CHECK(before["taken"] == after["taken"]);
    CHECK(!after["taken"].empty());

    CHECK_THAT(train_bf16(folder, "again", {"--tune", "again"}, ranks),
               Contains(" timed now, stored in " + file + '\n'));
    CHECK(read_bytes(file) != kept);  // other times
}

TEST_CASE("the stored algorithm determines the bits, whichever is fastest", "[run]") {
    skip_without_choices();
    if (kernels::Matmul::chooses_by_shape()) skip("only oneDNN has two ways to multiply bf16");
    const TrainingFolder folder;
    for (const char* arithmetic : {"native", "widen"})
        train_bf16(folder, arithmetic, {"--bf16-arithmetic", arithmetic});
    CHECK(!fs::exists(folder.path("choices.json")));  // set by a flag: nothing to time
    train_bf16(folder, "timed");
    const std::string text = read_bytes(folder.path("choices.json"));
    const bool was_native = text.find(kNative) != text.npos;
    const std::string other = was_native ? kWidened : kNative, taken = was_native ? kNative : kWidened;
    write_bytes(folder.path("choices.json"), std::string(text).replace(text.find(taken), taken.size(), other));
    train_bf16(folder, "forged");
    CHECK_THAT(start_of(folder, "forged")["matmul"].get<std::string>(), Contains("bf16 " + other + " ("));
    CHECK(folder.model("timed", 3) == folder.model(was_native ? "native" : "widen", 3));
    CHECK(folder.model("forged", 3) == folder.model(was_native ? "widen" : "native", 3));
    CHECK(folder.model("forged", 3) != folder.model("timed", 3));
}
