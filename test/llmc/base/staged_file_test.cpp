// staged_file_test.cpp - atomic replacement of a file
#include "llmc/base/staged_file.h"

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

namespace fs = std::filesystem;
using test::read_bytes;

namespace {

std::size_t entries(const fs::path& folder) {
    return std::size_t(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("a staged file creates its folders, replaces an old file and leaves nothing else", "[staged_file]") {
    const test::ScratchFolder scratch;
    const fs::path folder = scratch.path() / "a" / "b", place = folder / "file.json";
    llmc::write_whole(place, "first");
    CHECK(read_bytes(place) == "first");
    llmc::write_whole(place, "");
    CHECK(read_bytes(place).empty());
    CHECK(entries(folder) == 1);
}

TEST_CASE("if a staged file cannot be written, the old one stays and nothing is left behind", "[staged_file]") {
    const test::ScratchFolder scratch;
    const fs::path place = scratch.path() / "file.json";
    llmc::write_whole(place, "old");
    // Simulates a full disk: no file may grow beyond 100 bytes.
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit little{100, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &little);
    const std::string heard = test::error_of([&] { llmc::write_whole(place, std::string(1000, 'x')); });
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    CHECK(heard == "cannot write " + place.string() + ": File too large");
    CHECK(read_bytes(place) == "old");
    CHECK(entries(scratch.path()) == 1);

    fs::create_directory(scratch.path() / "folder");
    CHECK_THAT(test::error_of([&] { llmc::write_whole(scratch.path() / "folder", "x"); }),
               test::StartsWith("cannot write " + (scratch.path() / "folder").string() + ": "));
    CHECK_THAT(test::error_of([&] { llmc::write_whole(place / "below", "x"); }),
               test::StartsWith("cannot create " + place.string() + ": "));
    CHECK(entries(scratch.path()) == 2);
}
