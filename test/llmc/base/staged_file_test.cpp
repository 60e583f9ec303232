// staged_file_test.cpp - atomic replacement of a file
#include "llmc/base/staged_file.h"

#include "test/support/shard_support.h"

namespace fs = std::filesystem;
using test::read_bytes;

TEST_CASE("a staged file creates its folders, replaces an old file and leaves nothing else", "[staged_file]") {
    const test::ScratchFolder scratch;
    const fs::path folder = scratch / "a" / "b", place = folder / "file.json";
    llmc::write_whole(place, "first");
    CHECK(read_bytes(place) == "first");
    llmc::write_whole(place, "");
    CHECK(read_bytes(place).empty());
    CHECK(test::names_in(folder).size() == 1);
}

TEST_CASE("if a staged file cannot be written, the old one stays and nothing is left behind", "[staged_file]") {
    const test::ScratchFolder scratch;
    const fs::path place = scratch / "file.json";
    llmc::write_whole(place, "old");
    const std::string heard = [&] {
        const test::FullDisk full(100);
        return test::error_of([&] { llmc::write_whole(place, std::string(1000, 'x')); });
    }();
    CHECK_THAT(heard, test::StartsWith("cannot write " + place.string() + ": File too large; raise "));
    CHECK(read_bytes(place) == "old");
    CHECK(test::names_in(scratch.path()).size() == 1);

    fs::create_directory(scratch / "folder");
    CHECK_THAT(test::error_of([&] { llmc::write_whole(scratch / "folder", "x"); }),
               test::StartsWith("cannot write " + (scratch / "folder").string() + ": "));
    CHECK_THAT(test::error_of([&] { llmc::write_whole(place / "below", "x"); }),
               test::StartsWith("cannot create " + place.string() + ": "));
    CHECK(test::names_in(scratch.path()).size() == 2);
}
