// newest_model_test.cpp - which model a path names, and that its manifest is compared
#include <atomic>
#include <thread>

#include "llmc/weights/manifest.h"
#include "llmc/weights/saved_model.h"
#include "llmc/weights/step_folder.h"
#include "test/support/run_support.h"

using namespace llmc;
using test::Contains;

namespace {

// A run's folder with the models of steps 1 and 2.
struct RunFolder {
    test::ScratchFolder scratch;
    std::filesystem::path out = scratch / "out", last = step_folder(out, 2), model = last / "model.safetensors";

    RunFolder() {
        std::filesystem::permissions(scratch.path(), std::filesystem::perms(0755));  // for WithoutRoot
        for (const int step : {1, 2}) {
            const auto folder = step_folder(out, step);
            std::filesystem::create_directories(folder);
            const ParameterTable table(ModelConfig{1, 1, 8, 4, 16});
            const std::vector<float> weights(std::size_t(table.elements()), float(step));
            write_model(folder, table, weights, -1);
            test::make_checksums_right(folder);
        }
    }
    void flip_a_bit() const {
        std::string bytes = test::read_bytes(model);
        bytes.back() ^= 1;
        test::write_bytes(model, bytes);
    }
};

}  // namespace

TEST_CASE("the newest model is found while a run deletes older ones", "[checkpoint]") {
    const RunFolder run;
    std::atomic<bool> done = false;
    std::jthread rotates([&] {  // as CheckpointWriter does
        for (int step = 2; !done; ++step) {
            const auto old = step_folder(run.out, step), hidden = run.out / ".old", next = run.out / ".next";
            std::filesystem::copy(step_folder(run.out, 1), next);
            std::filesystem::rename(next, step_folder(run.out, step + 1));
            std::filesystem::rename(old, hidden);
            std::filesystem::remove_all(hidden);
        }
    });
    for (int i = 0; i < 300; ++i) {
        const NewestModel newest = newest_model(run.out);
        CHECK(newest.path != step_folder(run.out, 1));
        CHECK(newest.notes.empty());
    }
    done = true;
}

TEST_CASE("a tokenizer with flipped bits is not used", "[checkpoint]") {
    const RunFolder run;
    const auto tokenizer = run.last / "tokenizer.json";
    test::write_bytes(tokenizer, "{}");
    test::make_checksums_right(run.last);
    CHECK(newest_model(run.last).path == run.last);
    test::write_bytes(tokenizer, "{ ");
    CHECK_THAT(test::error_of([&] { newest_model(run.last); }),
               Contains("the checksum of ") && Contains("tokenizer.json is "));
    std::filesystem::remove(tokenizer);
    CHECK(newest_model(run.last).path == run.last);
}

TEST_CASE("an older model is used if the newest is damaged, but not if it cannot be read", "[checkpoint]") {
    const RunFolder run;
    for (const auto& path : {run.last / "config.json", run.model, run.last / kManifestName, run.last, run.out}) {
        CAPTURE(path);
        std::filesystem::permissions(path, std::filesystem::perms::none);
        {
            const test::WithoutRoot without_root;
            CHECK_THAT(test::error_of([&] { newest_model(run.out); }),
                       Contains(path.string()) && Contains(" is unreadable (Permission denied)"));
        }
        std::filesystem::permissions(path, std::filesystem::perms(0755));
    }
    CHECK(newest_model(run.out).path == run.last);
    run.flip_a_bit();
    const NewestModel older = newest_model(run.out);
    CHECK(older.path == step_folder(run.out, 1));
    REQUIRE(older.notes.size() == 1);
    CHECK_THAT(older.notes[0], Contains("skips ") && Contains("the checksum of "));
}

TEST_CASE("a model that differs from the manifest in its folder is refused", "[checkpoint]") {
    const RunFolder run;
    for (const auto& path : {run.last, run.model}) CHECK(newest_model(path).path == path);
    run.flip_a_bit();
    for (const auto& path : {run.last, run.model}) {
        CAPTURE(path);
        CHECK_THAT(test::error_of([&] { newest_model(path); }),
                   Contains("the checksum of ") && Contains("model.safetensors is ") && Contains("remove manifest"));
    }
    std::filesystem::remove(run.last / kManifestName);
    CHECK(newest_model(run.last).path == run.last);
}
