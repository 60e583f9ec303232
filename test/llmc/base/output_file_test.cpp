// output_file_test.cpp - files written with O_DIRECT and, where that is refused, through the page cache
#include "llmc/base/output_file.h"

#include "test/support/shard_support.h"

using llmc::OutputFile;
namespace fs = std::filesystem;

namespace {

std::string letters(std::size_t count) {
    std::string text(count, ' ');
    for (std::size_t i = 0; i < count; ++i) text[i] = char('a' + i * i % 26);
    return text;
}

constexpr std::size_t kMiB = 1 << 20;

}  // namespace

TEST_CASE("an output file has the appended bytes and their fingerprint", "[output_file]") {
    // Disks accept O_DIRECT writes of whole blocks; a file system in memory may not, and a device does not.
    const test::ScratchFolder scratch;
    const fs::path folder = GENERATE(true, false) ? scratch.path() : fs::path("/dev/shm");
    if (!fs::is_directory(folder)) test::skip("no " + folder.string());
    const fs::path place = folder / ("output_file_test_" + std::to_string(getpid()));
    const auto size = GENERATE(std::size_t(0), 1, 4095, 4096, 4097, kMiB - 1, kMiB, kMiB + 1, 3 * kMiB, 3 * kMiB + 5);
    const auto piece = GENERATE(std::size_t(997), 300000, 5 * kMiB);
    CAPTURE(folder, size, piece);
    const std::string text = letters(size);
    OutputFile file(place);
    for (std::size_t first = 0; first < size; first += piece)
        file.append(std::as_bytes(std::span(text).subspan(first, std::min(piece, size - first))));
    const llmc::FileFingerprint written = file.finish();
    CHECK(test::read_bytes(place) == text);
    CHECK(written.bytes == std::int64_t(size));
    CHECK(written.xxh3 == llmc::fingerprint(std::as_bytes(std::span(text))));
    CHECK(written == llmc::fingerprint_of_file(place));
    fs::remove(place);
}

TEST_CASE("an output file reports a full disk, wherever the space ends", "[output_file]") {
    const test::ScratchFolder scratch;
    const fs::path place = scratch / "file";
    const auto room = GENERATE(rlim_t(0), 100, 4096, 6000, kMiB, kMiB + 8192, kMiB + 8200, 2 * kMiB - 1);
    CAPTURE(room);
    const std::string text = letters(2 * kMiB);
    const std::string heard = [&] {
        const test::FullDisk full(room);
        return test::error_of([&] {
            OutputFile file(place, "the file of this test");
            file.append(std::as_bytes(std::span(text)));
            file.finish();
        });
    }();
    CHECK(heard == "cannot write the file of this test: File too large; raise this process' limit of the sizes of "
                   "files (ulimit -f)");
    CHECK(fs::file_size(place) <= room);
}

TEST_CASE("an output file that cannot be created throws an error", "[output_file]") {
    const test::ScratchFolder scratch;
    CHECK(test::error_of([&] { OutputFile(scratch / "none" / "file", "it"); }) ==
          "cannot create it: No such file or directory; create its folder");
    CHECK(test::error_of([&] {
              OutputFile full("/dev/full");
              full.append(std::as_bytes(std::span("x")));
              full.finish();
          }) == "cannot write /dev/full: No space left on device; free disk space");
}
