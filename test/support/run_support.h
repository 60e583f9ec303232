// run_support.h - runs the real program from its command line, in a folder with training data
#pragma once
#include <algorithm>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sstream>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/device/device.h"
#include "llmc/base/json_text.h"
#include "llmc/weights/manifest.h"
#include "test/support/scratch_folder.h"
#include "test/support/shard_support.h"

namespace test {

namespace fs = std::filesystem;

// The programs are in the folder of this one.
inline std::string program(const std::string& name) {
    return (fs::read_symlink("/proc/self/exe").parent_path() / name).string();
}

// A running program; its output goes to a file.
class Process {
public:
    Process(std::vector<std::string> arguments, const fs::path& output) : output_(output) {
        std::vector<char*> argv;
        for (std::string& argument : arguments) argv.push_back(argument.data());
        argv.push_back(nullptr);
        process_ = fork();
        if (process_ == 0) {
            // A shell in the background, or nohup, may have set them to be ignored for this test.
            for (const int ignored : {SIGINT, SIGHUP}) ::signal(ignored, SIG_DFL);
            const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
            dup2(file, STDOUT_FILENO);
            dup2(file, STDERR_FILENO);
            execvp(argv[0], argv.data());
            _exit(127);
        }
    }
    ~Process() {
        if (process_ > 0 && !ended_) {
            kill(process_, SIGKILL);
            waitpid(process_, nullptr, 0);
        }
    }
    void signal(int number) const { kill(process_, number); }
    pid_t id() const { return process_; }
    // Without the NUL bytes that end Open MPI 5's own messages, because a line of the program may follow one.
    std::string output() const {
        std::string output = fs::exists(output_) ? read_bytes(output_) : "";
        std::erase(output, '\0');
        return output;
    }
    bool ended() const {  // whether it has ended; exit_code() stays available
        siginfo_t info{};
        return waitid(P_PID, id_t(process_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
    }
    // Waits at most `at_most`, then kills the program, so that one that never ends fails only its own test case.
    // Negative: killed by that signal.
    int exit_code(std::chrono::milliseconds at_most = std::chrono::minutes(5)) {
        const int handle = int(syscall(SYS_pidfd_open, process_, 0));
        pollfd end{.fd = handle, .events = POLLIN, .revents = 0};
        if (handle >= 0 && poll(&end, 1, int(at_most.count())) == 0) signal(SIGKILL);
        if (handle >= 0) close(handle);
        int status = 0;
        waitpid(process_, &status, 0);
        ended_ = true;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }

private:
    fs::path output_;
    pid_t process_ = -1;
    bool ended_ = false;
};

struct Result {
    int exit_code;
    std::string output;
    int lines() const { return int(std::count(output.begin(), output.end(), '\n')); }
};

// A folder with shards of a language that a small model learns quickly, and the flags to train on them.
class TrainingFolder {
public:
    TrainingFolder() {
        std::mt19937 engine(1);
        std::vector<std::uint16_t> ids{256};
        for (int i = 0; i < 6000; ++i)
            ids.push_back(ids.back() == 256 || engine() % 8 == 0 ? std::uint16_t('a' + engine() % 20)
                                                                 : std::uint16_t(ids.back() + 1));
        ShardBytes(ids, 257, 256).write(path("train_0.bin"));
        ids.resize(700);
        ShardBytes(ids, 257, 256).write(path("val_0.bin"));
    }
    std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
    std::vector<std::string> flags(std::vector<std::string> more = {}) const {
        std::vector<std::string> all{"-i",        path("train_*.bin"),
                                     "-j",        path("val_*.bin"),
                                     "-e",        "custom:l=2,h=2,c=32,t=32",
                                     "-b",        "4",
                                     "-t",        "16",
                                     "--lr",      "1e-2",
                                     "--threads", "1"};
        // Tests start up to four ranks, which share GPUs if the machine has fewer.
        if (device::count() > 0 && device::count() < 4) all.insert(all.end(), {"--comm", "mpi"});
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    Process start(std::vector<std::string> arguments, const std::string& name = "train_gpt2") const {
        arguments.insert(arguments.begin(), program(name));
        return Process(arguments, path("output.txt"));
    }
    Result run(const std::vector<std::string>& arguments, const std::string& name = "train_gpt2") const {
        Process process = start(arguments, name);
        const int exit_code = process.exit_code();
        return {exit_code, process.output()};
    }
    // Runs under mpirun; requires skip_without_mpi(). The exit code is mpirun's.
    Result run_ranks(int ranks, std::vector<std::string> arguments) const {
        arguments.insert(arguments.begin(), {"mpirun", "--bind-to", "none", "--oversubscribe", "-np",
                                             std::to_string(ranks), program("train_gpt2")});
        Process process(arguments, path("output.txt"));
        const int exit_code = process.exit_code();
        return {exit_code, process.output()};
    }
    // Skips a last line that the run is still writing.
    std::vector<nlohmann::json> log(const std::string& out, const std::string& event) const {
        std::vector<nlohmann::json> events;
        const std::string text = read_bytes(fs::path(path(out)) / "log.jsonl");
        std::istringstream lines(text.substr(0, text.rfind('\n') + 1));
        for (std::string line; std::getline(lines, line);)
            if (auto json = llmc::parse_json(line); json["event"] == event) events.push_back(json);
        return events;
    }

private:
    ScratchFolder folder_;
};

inline std::vector<double> numbers(const std::vector<nlohmann::json>& events, const char* key) {
    std::vector<double> values;
    for (const auto& event : events) values.push_back(event[key].get<double>());
    return values;
}

// Updates the checksums after a test has changed a file of a checkpoint.
inline void make_checksums_right(const fs::path& checkpoint) {
    llmc::Manifest manifest;
    for (const auto& entry : fs::directory_iterator(checkpoint))
        if (entry.path().filename() != llmc::kManifestName)
            manifest[entry.path().filename()] = llmc::fingerprint_of_file(entry.path());
    llmc::write_manifest(checkpoint, manifest);
}

}  // namespace test
