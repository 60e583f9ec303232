// resume_search_test.cpp - which checkpoint --resume finds, what it moves and removes, and what only ends the run
#include "llmc/run/start/resume.h"

#include <nlohmann/json.hpp>

#include "llmc/comm/communicator.h"
#include "llmc/weights/manifest.h"
#include "llmc/weights/step_folder.h"
#include "test/support/run_support.h"

using namespace llmc;
using namespace test;

namespace {

// An output folder with checkpoints of steps 10 and 20, whose files have any contents: only manifests are compared.
struct OutputFolder {
    ScratchFolder scratch;
    fs::path out = scratch / "out";
    CheckpointSettings options;
    std::unique_ptr<Communicator> communicator = alone();

    OutputFolder() {
        options.output_dir = out.string();
        options.resume = "auto";
        fs::permissions(scratch.path(), fs::perms(0755));  // for WithoutRoot
        save(10);
        save(20);
    }
    fs::path save(std::int64_t step) const {
        const fs::path folder = step_folder(out, step);
        fs::create_directories(folder);
        write_trainer_state(folder, {.step = step, .optimizer = {.updates = step},
                                     .batches = {{0, 1}}, .run = {.options = JsonValue(nlohmann::json::object())}});
        for (const char* const name : {"config.json", "model.safetensors", "optimizer-00000-of-00001.safetensors",
                                       "tokenizer.json"})
            write_bytes(folder / name, name);
        make_checksums_right(folder);
        return folder;
    }
    ResumeSearch search() const { return find_resumption(options, *communicator); }
    std::string search_without_root() const {
        const WithoutRoot without_root;
        return error_of([&] { search(); }, Blame::input);
    }
};

}  // namespace

TEST_CASE("a checkpoint that this user may not read is not damaged: the run ends and moves nothing", "[resume]") {
    OutputFolder folder;
    const fs::path last = step_folder(folder.out, 20);
    if (GENERATE(false, true)) folder.options.resume = last.string();
    std::vector<fs::path> closed{last};
    for (const auto& entry : fs::directory_iterator(last)) closed.push_back(entry.path());
    REQUIRE(closed.size() == 7);
    if (folder.options.resume == "auto") closed.push_back(folder.out);
    for (const fs::path& path : closed) {
        CAPTURE(path, folder.options.resume);
        fs::permissions(path, fs::perms::none);
        CHECK_THAT(folder.search_without_root(),
                   Contains(path.string()) && Contains(" is unreadable (Permission denied); expected ") &&
                       Contains("; check its permissions"));
        fs::permissions(path, fs::perms(0755));
        CHECK(folder.search_without_root() == "accepted");
    }
}

TEST_CASE("an output folder that cannot be written to is refused before a new run is announced", "[resume]") {
    const OutputFolder folder;
    for (const int step : {10, 20}) fs::remove_all(step_folder(folder.out, step));
    fs::permissions(folder.out, fs::perms(0555));
    CHECK_THAT(folder.search_without_root(), Contains("--output-dir is ") && Contains("can be written to: Permission"));
    fs::permissions(folder.out, fs::perms(0755));
}

TEST_CASE("one flipped bit in any file, a missing file and a folder in its place are damage", "[resume]") {
    const OutputFolder folder;
    const fs::path last = step_folder(folder.out, 20);
    const auto check_damaged = [&] {
        const ResumeSearch found = folder.search();
        CHECK(found.resumption->state.step == 10);
        CHECK(found.damaged.size() == 1);
    };
    for (const std::string& name : names_in(last)) {
        CAPTURE(name);
        const std::string whole = read_bytes(last / name);
        std::string flipped = whole;
        flipped[whole.size() / 2] ^= 4;
        write_bytes(last / name, flipped);
        check_damaged();
        write_bytes(last / name, whole);
    }
    CHECK(folder.search().resumption->state.step == 20);
    const fs::path file = last / GENERATE("manifest.json", "model.safetensors");
    CAPTURE(file);
    fs::remove(file);
    check_damaged();
    fs::create_directory(file);
    check_damaged();
}

TEST_CASE("a checkpoint that another run has changed since the search is not moved", "[resume]") {
    const OutputFolder folder;
    const fs::path last = step_folder(folder.out, 20);
    write_bytes(last / "model.safetensors", "damaged");
    const ResumeSearch found = folder.search();
    REQUIRE(found.damaged.size() == 1);
    SECTION("it has saved the step anew") {
        fs::rename(last, last.string() + ".damaged");
        folder.save(20);
    }
    SECTION("it has saved a newer one") { folder.save(30); }
    SECTION("it is saving the step anew") { fs::rename(last, last.string() + ".damaged"); }
    SECTION("it is damaged in another place now") { fs::remove(last / kManifestName); }
    const bool there = fs::exists(last);
    CHECK_THAT(error_of([&] { clear_for_resumption(found, folder.options); }),
               Contains("another run has just saved one: start this run again"));
    CHECK(fs::exists(last) == there);
    CHECK_FALSE(fs::exists(last.string() + ".damaged2"));
}

TEST_CASE("a checkpoint that another run has deleted since the search is not resumed", "[resume]") {
    const OutputFolder folder;
    const ResumeSearch found = folder.search();
    fs::remove_all(step_folder(folder.out, 20));
    CHECK_THAT(error_of([&] { clear_for_resumption(found, folder.options); }),
               Contains("step_00000020 is no longer there; ") && Contains("another run has deleted it"));
}

TEST_CASE("only hidden folders with the name of a step are removed", "[resume]") {
    const OutputFolder folder;
    const fs::path ours = folder.out / ".step_00000030.partial";
    fs::create_directory(ours);
    const std::vector<std::string> others{".step_my_notes.partial", ".step_.partial", ".step_30.partial",
                                          ".step_-0000030.partial", ".step_00000030a.partial", "step_00000030.partial",
                                          ".step_00000030", ".step_00000030.partial.old"};
    for (const std::string& name : others) fs::create_directory(folder.out / name);
    clear_for_resumption(folder.search(), folder.options);
    CHECK_FALSE(fs::exists(ours));
    for (const std::string& name : others) {
        CAPTURE(name);
        CHECK(fs::exists(folder.out / name));
    }
}
