// parquet_lines.cpp - starts the program that reads Parquet, and reports its errors
#include "llmc/text/parquet_lines.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "kernels/base/error.h"

extern char** environ;

namespace llmc {
namespace {

// Beside build/DEVICE/PROGRAM.
std::string parquet_program() {
    std::error_code none;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", none);
    return program.parent_path().parent_path().parent_path() / "dev/data/parquet_lines.py";
}

}  // namespace

ParquetLines::ParquetLines(const std::string& path, const std::string& column) : path_(path) {
    const std::string reader = parquet_program();
    require(std::filesystem::exists(reader), "the program that reads Parquet, " + reader + ",", "missing",
            "dev/data/parquet_lines.py beside build/", "run dev/tokenize of the folder that it was built in");
    int ends[2];
    errors_ = std::tmpfile();
    if (!errors_ || ::pipe2(ends, O_CLOEXEC) != 0) {
        if (errors_) std::fclose(errors_);
        fail("a pipe from python3", std::strerror(errno), "room for a temporary file and two open files",
             "free space in TMPDIR, or raise ulimit -n", Blame::runtime);
    }
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, ::fileno(errors_), STDERR_FILENO);
    std::string words[] = {"python3", reader, "--column=" + column, "--", path};
    char* arguments[std::size(words) + 1] = {};
    for (std::size_t i = 0; i < std::size(words); ++i) arguments[i] = words[i].data();
    const int failure = ::posix_spawnp(&program_, arguments[0], &actions, nullptr, arguments, environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    lines_ = ends[0];
    if (failure == 0) return;
    ::close(lines_);
    std::fclose(errors_);
    fail("python3", failure == ENOENT ? "not found" : std::strerror(failure),
         "python3 with the package pyarrow, which reads " + path, "install it, or convert the table to lines of JSON");
}

ParquetLines::~ParquetLines() {
    ::close(lines_);
    if (program_ > 0) {
        ::kill(program_, SIGKILL);
        while (::waitpid(program_, nullptr, 0) < 0 && errno == EINTR) {
        }
    }
    std::fclose(errors_);
}

void ParquetLines::check_end() {
    if (program_ == 0) return;
    int status = 0;
    while (::waitpid(program_, &status, 0) < 0 && errno == EINTR) {
    }
    program_ = 0;
    if (status == 0) return;
    char said[2000] = {};
    std::rewind(errors_);
    std::string last;  // a traceback ends with the error
    while (std::fgets(said, sizeof said, errors_)) last = said;
    last.erase(last.find_last_not_of('\n') + 1);
    constexpr std::string_view kName = "dev/data/parquet_lines.py: error: ";
    if (last.starts_with(kName))
        throw Error(last.substr(kName.size()), WEXITSTATUS(status) == 2 ? Blame::input : Blame::runtime);
    fail("the program that reads " + path_,
         WIFSIGNALED(status) ? "ended by signal " + std::to_string(WTERMSIG(status))
                             : "ended by an error (" + last + ")",
         "all rows", "check Python's package pyarrow", Blame::runtime);
}

}  // namespace llmc
