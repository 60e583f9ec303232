// cut_off_guard_test.cpp - files that are truncated while they are mapped: zeros and a mark with a guard, SIGBUS
// without one
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "llmc/base/mapped_file.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

using namespace llmc;
using namespace test;

namespace {

constexpr std::size_t kPages = 64;
const std::size_t kPage = std::size_t(sysconf(_SC_PAGE_SIZE));

std::string write_pages(const std::filesystem::path& path) {
    write_bytes(path, std::string(kPages * kPage, 'x'));
    return path.string();
}

// The number of bytes that are 'x'; SIZE_MAX if any other byte is not 0.
std::size_t kept(const MappedFile& file) {
    std::size_t kept = 0, zeros = 0;
    for (const std::byte byte : file.bytes()) {
        kept += byte == std::byte('x');
        zeros += byte == std::byte(0);
    }
    return kept + zeros == file.bytes().size() ? kept : SIZE_MAX;
}

void read_all(const MappedFile& file) { [[maybe_unused]] const volatile std::size_t read = kept(file); }

// Whether a child process that runs `work` exits normally.
template <class Work> bool survives(Work&& work) {
    const pid_t child = fork();
    if (child == 0) {
        close(STDERR_FILENO);  // sanitizers would report the signal
        work();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("the missing part of a truncated guarded file reads as zeros in every thread", "[cut_off_guard]") {
    const ScratchFolder folder;
    MappedFile cut(write_pages(folder.path() / "cut"), "file"), whole(write_pages(folder.path() / "whole"), "file");
    cut.guard();
    whole.guard();
    CHECK_FALSE(cut.cut_off());
    std::filesystem::resize_file(cut.path(), 5 * kPage + 7);
    CHECK_FALSE(cut.pages_missing());  // nothing was read yet
    CHECK(cut.cut_off());
    std::atomic<int> right = 0;
    std::vector<std::thread> readers;
    for (int i = 0; i < 8; ++i) readers.emplace_back([&] { right += kept(cut) == 5 * kPage + 7 && kept(whole) > 0; });
    for (std::thread& reader : readers) reader.join();
    CHECK(right == 8);
    CHECK(cut.pages_missing());
    CHECK_FALSE(whole.cut_off());
    // The guard moves with its file.
    const MappedFile moved = std::move(cut);
    CHECK(moved.pages_missing());
    CHECK_FALSE(cut.pages_missing());
}

TEST_CASE("a guard ends with its mapping", "[cut_off_guard]") {
    const ScratchFolder folder;
    const std::string path = (folder.path() / "file").string();
    for (int i = 0; i < 3; ++i) {  // each mapping gets the address of the previous one
        MappedFile file(write_pages(path), "file");
        file.guard();
        CHECK_FALSE(file.pages_missing());
        std::filesystem::resize_file(path, 0);
        CHECK(kept(file) == 0);
        CHECK(file.pages_missing());
    }
}

TEST_CASE("a file that another one replaced does not count as truncated", "[cut_off_guard]") {
    const ScratchFolder folder;
    MappedFile file(write_pages(folder.path() / "file"), "file");
    file.guard();
    write_bytes(folder.path() / "other", "short");
    std::filesystem::rename(folder.path() / "other", folder.path() / "file");
    CHECK_FALSE(file.cut_off());
    CHECK(kept(file) == kPages * kPage);
}

TEST_CASE("every other SIGBUS still ends the process", "[cut_off_guard]") {
    const ScratchFolder folder;
    MappedFile guarded(write_pages(folder.path() / "guarded"), "file");
    guarded.guard();
    const MappedFile other(write_pages(folder.path() / "other"), "file");
    std::filesystem::resize_file(guarded.path(), 0);
    std::filesystem::resize_file(other.path(), 0);
    CHECK(survives([&] { read_all(guarded); }));
    CHECK_FALSE(survives([&] { read_all(other); }));
    CHECK_FALSE(survives([] { kill(getpid(), SIGBUS); }));
}
