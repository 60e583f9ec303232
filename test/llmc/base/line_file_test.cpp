// line_file_test.cpp - a log of complete lines, on a full disk and after its deletion
#include "llmc/base/line_file.h"

#include <sys/stat.h>

#include <system_error>

#include "test/support/shard_support.h"

using namespace llmc;
using namespace test;

namespace {

int refusal_to_open(const std::filesystem::path& path) {
    try {
        LineFile file(path);
    } catch (const std::system_error& refused) {
        return refused.code().value();
    }
    return 0;
}

}  // namespace

TEST_CASE("after a full disk the log has complete lines and accepts more", "[line_file]") {
    const ScratchFolder folder;
    const auto path = folder / "log";
    LineFile file(path);
    file.append("first");
    {
        const FullDisk full(10);
        CHECK_THAT(error_of([&] { file.append("second, too long"); }),
                   StartsWith("writing " + path.string() + " is refused by the system (File too large)") &&
                       EndsWith("; raise this process' limit of the sizes of files (ulimit -f)"));
        CHECK(read_bytes(path) == "first\n");
        file.append("abc");
    }
    file.append("");
    CHECK(read_bytes(path) == "first\nabc\n\n");
    CHECK(file.size() == 11);
}

TEST_CASE("an incomplete line is removed, complete ones stay", "[line_file]") {
    const ScratchFolder folder;
    const auto path = folder / "log";
    const auto [before, after] = GENERATE(table<std::string, std::string>(
        {{"", ""}, {"half", ""}, {"one\n", "one\n"}, {"one\n\nhalf", "one\n\n"}, {"\nhalf", "\n"}}));
    write_bytes(path, before);
    LineFile file(path);
    file.drop_half_line();
    CHECK(read_bytes(path) == after);
    file.append("next");
    CHECK(read_bytes(path) == after + "next\n");
}

TEST_CASE("a log has one writer at a time", "[line_file]") {
    const ScratchFolder folder;
    const auto path = folder / "log";
    {
        CHECK_THROWS_AS(LineFile(path, /*creates=*/false), std::system_error);
        const mode_t mask = umask(0002);  // of a group that shares its runs
        LineFile file(path);
        umask(mask);
        CHECK(std::filesystem::status(path).permissions() == std::filesystem::perms(0664));
        CHECK(refusal_to_open(path) == EWOULDBLOCK);
        file.append("one");
    }
    LineFile(path).append("two");
    CHECK(read_bytes(path) == "one\ntwo\n");
    CHECK(refusal_to_open(folder.path()) == EISDIR);
    CHECK(refusal_to_open(path / "below") == ENOTDIR);
}

TEST_CASE("a log that was deleted or moved away is not written to", "[line_file]") {
    const ScratchFolder folder;
    const auto out = folder / "out", path = out / "log";
    std::filesystem::create_directory(out);
    LineFile file(path);
    file.append("one");
    const std::string gone = path.string() + " is deleted or moved away; expected to stay where it is";
    SECTION("deleted") { std::filesystem::remove_all(out); }
    SECTION("moved away") { std::filesystem::rename(out, folder / "other"); }
    SECTION("another file has its name") {
        std::filesystem::remove(path);
        write_bytes(path, "other\n");
    }
    CHECK_THAT(error_of([&] { file.append("two"); }), StartsWith(gone));
}
