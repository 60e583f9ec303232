// manifest_test.cpp - files of a checkpoint that have changed are detected and named
#include "llmc/weights/manifest.h"

#include <nlohmann/json.hpp>

#include "test/support/scratch_folder.h"
#include "test/support/support.h"

using namespace llmc;
using namespace test;

namespace fs = std::filesystem;

TEST_CASE("a manifest detects files, including itself, that are missing, shorter, longer or changed", "[manifest]") {
    const ScratchFolder scratch;
    const fs::path folder = scratch.path();
    const auto complain = [&] { return error_of([&] { check_manifest(folder); }); };
    CHECK_THAT(complain(), Contains("without manifest.json"));
    const std::string large(3 << 20, 'x');  // larger than one read
    write_bytes(folder / "a", "abc");
    write_bytes(folder / "b", large);
    write_bytes(folder / "empty", "");
    Manifest manifest;
    for (const char* const name : {"a", "b", "empty"}) manifest[name] = fingerprint_of_file(folder / name);
    write_manifest(folder, manifest);
    write_bytes(folder / "not listed", "?");
    CHECK(complain() == "accepted");

    fs::rename(folder / "a", folder / "c");
    CHECK_THAT(complain(), Contains("/a is missing"));
    write_bytes(folder / "a", "abcd");
    CHECK_THAT(complain(), Contains("/a is 4 bytes; expected 3 bytes"));
    write_bytes(folder / "a", "abd");
    CHECK_THAT(complain(), Contains("the checksum of ") && Contains("/a is ") && Contains(manifest["a"].xxh3));
    write_bytes(folder / "a", "abc");
    std::string changed = large;
    changed.back() ^= 1;
    write_bytes(folder / "b", changed);
    CHECK_THAT(complain(), Contains("the checksum of ") && Contains("/b is "));
    write_bytes(folder / "b", large);
    CHECK(complain() == "accepted");

    const std::string whole = read_bytes(folder / kManifestName);
    for (std::size_t bit = 0; bit < whole.size() * 8 - 8; bit += 3) {  // except the last newline
        std::string damaged = whole;
        damaged[bit / 8] ^= char(1 << bit % 8);
        write_bytes(folder / kManifestName, damaged);
        CAPTURE(bit, damaged);
        CHECK(complain() != "accepted");
    }
}

TEST_CASE("a manifest with a path, an unprintable name, a size or a checksum of another kind is refused",
          "[manifest]") {
    const ScratchFolder scratch;
    const fs::path folder = scratch / "step";
    fs::create_directory(folder);
    for (const fs::path& file : {scratch / "x", folder / "x"}) write_bytes(file, "a");
    const std::string right = fingerprint_of_file(folder / "x").xxh3;
    using nlohmann::json;
    const auto complain = [&](const std::string& name, const json& bytes, const json& xxh3) {
        const json files = {{name, {{"bytes", bytes}, {"xxh3", xxh3}}}};
        const std::string text = files.dump();
        const json whole = {{"files", files}, {"xxh3", fingerprint(std::as_bytes(std::span(text)))}};
        write_bytes(folder / kManifestName, whole.dump());
        return error_of([&] { check_manifest(folder); });
    };
    CHECK(complain("x", 1, right) == "accepted");
    for (const auto& [name, bytes, xxh3] : std::vector<std::tuple<std::string, json, json>>{
             {"../x", 1, right}, {fs::absolute(scratch / "x"), 1, right}, {"..", 1, right}, {"a\nb", 1, right},
             {std::string(256, 'x'), 1, right}, {"", 1, right}, {"x", 1.5, right}, {"x", 1e300, right},
             {"x", true, right}, {"x", 1, "a\nb"}, {"x", 1, std::string(17, '0')},
             {"x", 1, std::string(15, '0') + 'g'}, {"x", 1, 1}}) {
        CAPTURE(name, bytes, xxh3);
        CHECK_THAT(complain(name, bytes, xxh3), Contains("manifest.json is damaged"));
    }
}

// The expected value was computed with Python's xxhash.
TEST_CASE("fingerprints of memory and of files are XXH3", "[manifest]") {
    const std::string text = "a model";
    CHECK(fingerprint(std::as_bytes(std::span(text))) == "c0b88d47a1993541");
    const ScratchFolder scratch;
    write_bytes(scratch / "file", text);
    CHECK(fingerprint_of_file(scratch / "file") == FileFingerprint{7, "c0b88d47a1993541"});
    CHECK_THAT(error_of([&] { fingerprint_of_file(scratch / "none"); }), Contains("none"));
}
