// input_file_test.cpp - files that are truncated, replaced or unreadable while they are read, or more than the soft
// limit, and the advice for each reason
#include "llmc/base/input_file.h"

#include <sys/resource.h>

#include <vector>

#include "llmc/base/file_status.h"
#include "test/support/scratch_folder.h"

using namespace llmc;
using namespace test;

TEST_CASE("a truncated file is a run-time error with offset, expected and found bytes", "[input_file]") {
    const ScratchFolder folder;
    const std::string path = folder / "file";
    write_bytes(path, std::string(20000, 'x'));
    const InputFile file(path, "shard");
    std::filesystem::resize_file(path, 9007);
    std::vector<std::byte> bytes(9000);
    file.read(7, bytes);
    CHECK(bytes == std::vector<std::byte>(9000, std::byte('x')));
    try {
        file.read(8, bytes);
        FAIL("read");
    } catch (const UnreadableError& error) {
        CHECK(error.blame() == Blame::runtime);
        CHECK(std::string(error.what()) == "shard " + path + " is cut off; expected 9000 bytes at offset 8, found 8999;"
                                           " copy or create it again, and do not change it while a program reads it");
    }
}

TEST_CASE("a fault of the disk while a file is read makes it unreadable", "[input_file]") {
    const InputFile file("/proc/self/mem", "shard");  // nothing is mapped at its start
    std::vector<std::byte> bytes(1);
    CHECK_THROWS_AS(file.read(0, bytes), UnreadableError);
    CHECK(error_of([&] { file.read(0, bytes); }) ==
          "shard /proc/self/mem is unreadable (Input/output error); expected one that can be read; check its disk");
}

TEST_CASE("a file is read to its end after another one has taken its name", "[input_file]") {
    const ScratchFolder folder;
    write_bytes(folder / "file", "whole");
    const InputFile file(folder / "file", "shard");
    write_bytes(folder / "other", "x");
    std::filesystem::rename(folder / "other", folder / "file");
    std::string text(5, ' ');
    file.read(0, std::as_writable_bytes(std::span(text)));
    CHECK(text == "whole");
    CHECK(read_text(folder / "file", "") == "x");
}

TEST_CASE("more files can be open than the soft limit", "[input_file]") {
    const ScratchFolder folder;
    write_bytes(folder / "file", "x");
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    const rlimit low{40, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
    std::vector<InputFile> files;
    for (int i = 0; i < 50; ++i) files.emplace_back(folder / "file", "shard");
    CHECK(files.back().size() == 1);
    setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("each reason why a file cannot be read has its own advice", "[file_status]") {
    const auto said = [](int fault) { return error_of([&] { fail_as_unreadable("model", fault); }); };
    CHECK_THAT(said(EACCES), Contains("model is unreadable (Permission denied)") && Contains("; check its perm"));
    CHECK_THAT(said(ENOMEM), Contains("; free memory") && Contains("ulimit -v"));
    CHECK_THAT(said(EMFILE), Contains("ulimit -n"));
    CHECK_THAT(said(ENFILE), Contains("fs.file-max"));
    CHECK_THAT(said(ELOOP), Contains("; remove the loop of symbolic links"));
    CHECK_THAT(said(EIO), Contains("; check its disk"));
}
